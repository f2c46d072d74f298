package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/** Data is encrypted where others may read it, unless all processes say that it need not be. */
public class EncryptDataTest {

    @DataProvider
    static Object[][] wishes() {
        return new Object[][] {
            {true, "", "", false},
            {true, "", "true", true},
            {true, "true", "false", true},
            {false, "", "", true},
            {false, "", "false", true},
            {false, "false", "", true},
            {false, "false", " FALSE", false},
        };
    }

    @Test(dataProvider = "wishes", timeOut = 30_000)
    public void allProcessesDoAsOne(boolean loopback, String first, String second, boolean wanted)
            throws Exception {
        String address = loopback ? Jobs.LOOPBACK : addressOfThisMachine();
        ServerSocketChannel bound = MasterPort.bindEphemeral(address);
        LaunchEnvironment place =
                new LaunchEnvironment("test", 1, 2, 1, address, MasterPort.getPort(bound));
        List<Job> jobs =
                new Jobs.Meeting(2, options(first), bound)
                        .with(() -> Job.join(place, options(second).build()))
                        .jobs();
        for (Job job : jobs) {
            Assert.assertEquals(job.isDataEncrypted(), wanted, "process " + job.getProcess());
        }
        Jobs.closeAll(jobs);
    }

    private static JobOptions.Builder options(String wish) {
        return Jobs.options(2)
                .optSecret("a long random text".getBytes(StandardCharsets.UTF_8))
                .optEnvironment(Map.of("TP_ENCRYPT_DATA", wish));
    }

    private static String addressOfThisMachine() throws SocketException {
        return NetworkInterface.networkInterfaces()
                .flatMap(NetworkInterface::inetAddresses)
                .filter(each -> !each.isLoopbackAddress() && !each.isLinkLocalAddress())
                .map(InetAddress::getHostAddress)
                .findFirst()
                .orElseThrow(() -> new SkipException("This machine has no network"));
    }

    @Test
    public void whatIsNoAnswerIsRefused() {
        Jobs.assertThrows(
                IllegalArgumentException.class,
                "The environment variable TP_ENCRYPT_DATA is 'yes': set it to true or false, or"
                        + " unset it",
                () -> options("yes").build());
        Assert.assertFalse(options("true").optEncryptData(false).build().encryptData);
    }
}

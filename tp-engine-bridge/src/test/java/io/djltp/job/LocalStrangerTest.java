package io.djltp.job;

import ai.djl.util.Utils;

import io.djltp.collective.ForkedJvm;
import io.djltp.job.Jobs.Meeting;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.stream.Stream;

/** Another user of the machine does not take the seat of a process on loopback. */
public class LocalStrangerTest {

    @DataProvider
    static Object[][] strangers() {
        return new Object[][] {{false}, {true}};
    }

    /** The stranger gives up after 2 s, in which the first job of a JVM still loads its classes. */
    @BeforeClass
    public void loadWhatAJobNeeds() throws Exception {
        Jobs.run(2, 2, job -> null);
    }

    /** Without any setting: no TP_SECRET. The stranger comes first, and the member after it. */
    @Test(dataProvider = "strangers", timeOut = 60_000)
    public void aStrangerIsRefusedAndTheJobComesTogether(boolean otherUser) throws Exception {
        Path folder = Files.createTempDirectory("tp-stranger");
        try {
            ForkedJvm stranger = stranger(folder, otherUser);
            Meeting meeting = new Meeting(2, Jobs.options(4).optTimeout(Duration.ofSeconds(20)));
            meeting.with(
                    () -> {
                        String port = "" + meeting.port;
                        String said =
                                stranger.run(JobProcess.class, "1", "2", port, "1500", "6")
                                        .output();
                        Job job = Jobs.join(1, 2, meeting.port, Jobs.options(4).build());
                        Assert.assertEquals(
                                job.getMember(1).pid(), ProcessHandle.current().pid(), said);
                        Assert.assertTrue(
                                said.matches(
                                        "(?s).*Process 1 was refused by process 0 at 127.0.0.1:\\d+"
                                                + " .*: without TP_SECRET all processes of a job on"
                                                + " loopback must be of one user; .*"),
                                said);
                        return job;
                    });
            Jobs.closeAll(meeting.jobs());
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static ForkedJvm stranger(Path folder, boolean otherUser) throws IOException {
        ForkedJvm jvm = new ForkedJvm().option("-Xmx64m").option("-Xshare:auto");
        if (otherUser) {
            jvm.asNobody(readableClassPath(folder));
        }
        // a home of its own, and with it another secret
        Path home = Files.createDirectory(folder.resolve("home"));
        Files.setPosixFilePermissions(home, PosixFilePermissions.fromString("rwxrwxrwx"));
        return jvm.option("-Duser.home=" + home);
    }

    /** Copies what the process needs to where others can read it. */
    private static Path readableClassPath(Path folder) throws IOException {
        if (!"root".equals(System.getProperty("user.name"))
                || !Files.isExecutable(Path.of("/usr/bin/setpriv"))) {
            throw new SkipException("Only root can start a process of another user, by setpriv");
        }
        Files.setPosixFilePermissions(folder, PosixFilePermissions.fromString("rwxr-xr-x"));
        Path classes = Files.createDirectory(folder.resolve("classes"));
        for (String entry : System.getProperty("java.class.path").split(File.pathSeparator)) {
            Path path = Path.of(entry);
            if (Files.isDirectory(path)) {
                copy(path, classes);
            } else if (path.getFileName().toString().matches("(slf4j|netty|bc|gson).*")) {
                Files.copy(path, classes.resolve(path.getFileName()));
            }
        }
        return classes;
    }

    private static void copy(Path from, Path to) throws IOException {
        try (Stream<Path> files = Files.walk(from)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                Path copy = to.resolve(from.relativize(file).toString());
                Files.createDirectories(copy.getParent());
                // every package has a package-info
                Files.copy(file, copy, StandardCopyOption.REPLACE_EXISTING);
            }
        }
    }
}

package io.djltp.internal.environment;

import ai.djl.util.Utils;

import io.djltp.job.Jobs;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Stream;

/** The secret of a user is the same for all processes, and nobody else's. */
public class LocalSecretTest {

    private Path parent;

    @BeforeMethod
    public void createFolder() throws IOException {
        parent = Files.createTempDirectory("tp-secret");
    }

    @AfterMethod
    public void deleteFolder() {
        Utils.deleteQuietly(parent);
    }

    @Test(timeOut = 30_000)
    public void allWhoComeAtOnceHaveTheSame() throws Exception {
        for (int round = 0; round < 20; round++) {
            Path folder = parent.resolve("round-" + round);
            List<Callable<String>> tasks = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                tasks.add(() -> new String(JobSecret.in(folder)));
            }
            Set<String> secrets = new HashSet<>(Jobs.results(tasks));
            Assert.assertEquals(secrets.size(), 1);
            Assert.assertTrue(secrets.iterator().next().matches("[0-9a-f]{64}"));
        }
    }

    @Test(timeOut = 30_000)
    public void onlyTheUserCanReadIt() throws Exception {
        Path folder = parent.resolve("f");
        JobSecret.in(folder);
        Assert.assertEquals(permissions(folder), "rwx------");
        Assert.assertEquals(permissions(folder.resolve("loopback-secret")), "rw-------");
        try (Stream<Path> files = Files.list(folder)) {
            Assert.assertEquals(files.count(), 1);
        }
    }

    @DataProvider
    static Object[][] dangers() {
        return new Object[][] {
            {"folder", "is open to other users: remove it"},
            {"link", "is a link"},
            {"file", "loopback-secret is open to other users: remove it"},
            {"empty", "loopback-secret does not hold a secret: remove it"},
            {"owner", "is of the user"},
            {"home", "NoSuchFileException"},
        };
    }

    @Test(dataProvider = "dangers", timeOut = 30_000)
    public void whereItWouldNotBeSafeAnotherPlaceIsTaken(String danger, String reason)
            throws Exception {
        Path bad = parent.resolve("bad");
        Path good = parent.resolve("good");
        prepare(danger, bad);
        if (danger.equals("home")) {
            bad = parent.resolve("no-home").resolve(".djltp");
        }
        Path folder = bad;
        Jobs.assertThrows(
                IllegalArgumentException.class,
                "The processes of a job on loopback know each other by a file that only this user"
                        + " can read, and there is none \\(.*\\Q"
                        + reason
                        + "\\E.*\\): set TP_SECRET to the same long random text on all processes",
                () -> JobSecret.in(folder));
        byte[] there = JobSecret.in(bad, good);
        Assert.assertEquals(JobSecret.in(good), there);
    }

    private void prepare(String danger, Path bad) throws Exception {
        switch (danger) {
            case "folder":
                Files.createDirectory(bad);
                Files.setPosixFilePermissions(bad, PosixFilePermissions.fromString("rwxrwx---"));
                break;
            case "link":
                Path other = parent.resolve("other");
                JobSecret.in(other);
                Files.createSymbolicLink(bad, other);
                break;
            case "file":
                JobSecret.in(bad);
                Files.setPosixFilePermissions(
                        bad.resolve("loopback-secret"),
                        PosixFilePermissions.fromString("rw-r-----"));
                break;
            case "empty":
                JobSecret.in(bad);
                Files.write(bad.resolve("loopback-secret"), new byte[0]);
                break;
            case "owner":
                JobSecret.in(bad);
                giveAway(bad);
                break;
            default:
                break;
        }
    }

    private static void giveAway(Path folder) throws IOException {
        try {
            Files.setAttribute(folder, "unix:uid", 65534);
        } catch (IOException e) {
            throw new SkipException("Only root can give a folder to another user");
        }
    }

    private static String permissions(Path path) throws IOException {
        return PosixFilePermissions.toString(Files.getPosixFilePermissions(path));
    }
}

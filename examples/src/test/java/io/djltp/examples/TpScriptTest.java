package io.djltp.examples;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The {@code tp} script, with a program in place of Java that prints what it is called with. */
public class TpScriptTest {

    private Path folder;
    private Path project;

    @BeforeMethod
    public void createProject() throws IOException {
        ForkedTp.skipWithout("bash", "apt-get install bash");
        folder = TestFolder.create().toRealPath();
        project = Files.createDirectories(folder.resolve("the project"));
        Path script = Path.of(System.getProperty("basedir", "."), "..", "tp");
        Files.copy(script, project.resolve("tp"));
        Files.writeString(project.resolve("pom.xml"), "");
        for (String module : List.of("examples", "tp-blocks", "tp-blocks/bom", "tp-blocks/llm")) {
            Path sources = Files.createDirectories(project.resolve(module).resolve("src/main"));
            Files.writeString(sources.getParent().getParent().resolve("pom.xml"), "");
        }
        Files.writeString(project.resolve("examples/tp.options"), "");
        Path target = Files.createDirectories(project.resolve("examples/target"));
        Files.createDirectories(jar().getParent());
        Files.writeString(jar(), "");
        Files.writeString(target.resolve("dependencies.txt"), jar() + ":" + jar());
        Path java = Files.createDirectories(folder.resolve("bin")).resolve("java");
        Files.writeString(java, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
        for (Path program : List.of(java, project.resolve("tp"))) {
            Assert.assertTrue(program.toFile().setExecutable(true));
        }
    }

    @Test(timeOut = 60_000)
    public void testStartsFromItsFolder() throws IOException, InterruptedException {
        assertStarts(project.resolve("tp"));
    }

    @Test(timeOut = 60_000)
    public void testStartsByALink() throws IOException, InterruptedException {
        Path elsewhere = Files.createDirectories(folder.resolve("elsewhere"));
        Path link =
                Files.createSymbolicLink(
                        elsewhere.resolve("tp"), Path.of("..", "the project", "tp"));
        assertStarts(link);
        assertStarts(Files.createSymbolicLink(folder.resolve("link to a link"), link));
    }

    /** Where the archive is unpacked, there is nothing to build. */
    @Test(timeOut = 60_000)
    public void testStartsFromTheArchive() throws IOException, InterruptedException {
        Path bin = Files.createDirectories(folder.resolve("an archive/bin"));
        Path script = Files.copy(project.resolve("tp"), bin.resolve("tp"));
        Path lib = Files.createDirectories(bin.resolveSibling("lib"));
        Files.copy(project.resolve("examples/tp.options"), lib.resolve("tp.options"));
        assertStarts(script, lib, bin + "/../lib/tp.jar");
        Path link = Files.createSymbolicLink(folder.resolve("tp"), script);
        assertStarts(link, lib, bin + "/../lib/tp.jar");
    }

    /** Absolute paths, such as Maven writes, are of no use where a checkout has been moved to. */
    @Test(timeOut = 60_000)
    public void testBuildsAgainWhereItWasMoved() throws IOException, InterruptedException {
        assertBuilds(Files.move(project, folder.resolve("moved")));
    }

    /** As those of the local repository are, once a user has emptied it. */
    @Test(timeOut = 60_000)
    public void testBuildsAgainWithoutItsJars() throws IOException, InterruptedException {
        Files.delete(jar());
        assertBuilds(project);
    }

    private void assertBuilds(Path clone) throws IOException, InterruptedException {
        ProcessBuilder builder = new ProcessBuilder(clone.resolve("tp").toString(), "doctor");
        String output = start(builder, false); // there is no Maven to build with
        Assert.assertTrue(output.contains("tp: building"), output);
    }

    /** Launchers start the processes of a job together. */
    @Test(timeOut = 60_000)
    public void testOneOfSeveralProcessesBuilds() throws IOException, InterruptedException {
        ForkedTp.skipWithout("flock", "apt-get install util-linux");
        Path stamp = project.resolve("examples/target/dependencies.txt");
        Files.delete(stamp);
        Path maven = project.resolve("mvnw");
        Files.writeString(
                maven,
                "#!/bin/sh\nsleep 1\necho a build >> builds\necho '%s' > examples/target/dependencies.txt\n"
                        .formatted(jar()));
        Assert.assertTrue(maven.toFile().setExecutable(true));
        List<Process> processes = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            ProcessBuilder builder = new ProcessBuilder(project.resolve("tp").toString(), "doctor");
            builder.environment().put("JAVA_HOME", folder.toString());
            processes.add(builder.inheritIO().redirectOutput(Redirect.DISCARD).start());
        }
        for (Process process : processes) {
            Assert.assertEquals(process.waitFor(), 0);
        }
        Assert.assertEquals(Files.readAllLines(project.resolve("builds")), List.of("a build"));
    }

    @DataProvider
    static Object[][] platforms() {
        return new Object[][] {
            {"Linux x86_64", "true", false}, // has Amazon's AES
            {"Linux aarch64", "true", true},
            {"Linux aarch64", "false", false},
        };
    }

    @Test(dataProvider = "platforms", timeOut = 60_000)
    public void testOptimizesOnlyJavasAes(String platform, String encrypt, boolean optimized)
            throws IOException, InterruptedException {
        Path uname = folder.resolve("bin/uname");
        Files.writeString(uname, "#!/bin/sh\necho " + platform + "\n");
        Assert.assertTrue(uname.toFile().setExecutable(true));
        ProcessBuilder builder = new ProcessBuilder(project.resolve("tp").toString(), "doctor");
        builder.environment().put("TP_ENCRYPT_DATA", encrypt);
        builder.environment().put("PATH", uname.getParent() + ":" + System.getenv("PATH"));
        String output = start(builder, true);
        Assert.assertEquals(output.contains("-XX:TieredStopAtLevel=4"), optimized, output);
    }

    private Path jar() {
        return project.resolve("tp-blocks/target/a.jar");
    }

    private void assertStarts(Path script) throws IOException, InterruptedException {
        String classes = project.resolve("examples/target/classes").toString();
        String jars = jar() + ":" + jar();
        assertStarts(script, project.resolve("examples"), classes + ":" + jars);
    }

    private void assertStarts(Path script, Path options, String classPath)
            throws IOException, InterruptedException {
        ProcessBuilder builder = new ProcessBuilder(script.toString(), "train", "--out", "a b");
        String output = start(builder, true);
        List<String> words = output.lines().toList();
        Assert.assertEquals(words.get(words.indexOf("-cp") + 1), classPath, output);
        Path file = Path.of(words.get(0).substring(1));
        Assert.assertEquals(file.normalize(), options.resolve("tp.options"), output);
        Assert.assertTrue(words.contains("-Dtp.command=" + script), output);
        Assert.assertEquals(
                words.subList(words.size() - 4, words.size()),
                List.of("io.djltp.examples.Tp", "train", "--out", "a b"));
    }

    private String start(ProcessBuilder builder, boolean succeeds)
            throws IOException, InterruptedException {
        builder.environment().put("JAVA_HOME", folder.toString());
        builder.environment().remove("TP_JAVA_OPTS");
        Process process =
                builder.redirectErrorStream(true).directory(Path.of("/").toFile()).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        Assert.assertEquals(process.waitFor() == 0, succeeds, output);
        return output;
    }
}

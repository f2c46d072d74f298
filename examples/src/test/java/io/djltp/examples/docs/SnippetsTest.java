package io.djltp.examples.docs;

import ai.djl.util.Utils;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Every block of Java in the README and in the guides is compiled; programs are run. */
public class SnippetsTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();

    private Path folder;
    private List<Snippet> compiled;

    @BeforeClass
    public void read() throws IOException {
        folder = Files.createTempDirectory("snippets").toRealPath();
        compiled =
                Page.readAll(ROOT).stream()
                        .filter(each -> each.mark() != Snippet.Mark.SKIPPED)
                        .toList();
    }

    @AfterClass(alwaysRun = true)
    public void delete() {
        Utils.deleteQuietly(folder);
    }

    @Test(timeOut = 120_000)
    public void everySnippetCompiles() throws IOException {
        List<String> errors = new SnippetCompiler(ROOT, folder).compile(compiled);
        Assert.assertEquals(errors, List.of(), String.join("\n", errors));
    }

    @Test(timeOut = 180_000, dependsOnMethods = "everySnippetCompiles")
    public void programsRun() throws IOException, InterruptedException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("--enable-native-access=ALL-UNNAMED", "-Dai.djl.offline=true"));
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.add("-cp");
        command.add(
                folder.resolve("classes")
                        + File.pathSeparator
                        + System.getProperty("java.class.path"));
        command.add(SnippetRunner.class.getName());
        compiled.stream()
                .filter(Snippet::isRun)
                .forEach(each -> command.add(each.packageName() + "." + each.className()));
        Path output = folder.resolve("output.txt");
        Process process =
                new ProcessBuilder(command)
                        .directory(Files.createDirectories(folder.resolve("work")).toFile())
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile())
                        .start();
        try {
            Assert.assertTrue(process.waitFor(150, TimeUnit.SECONDS), Files.readString(output));
            Assert.assertEquals(process.exitValue(), 0, Files.readString(output));
        } finally {
            process.destroyForcibly();
        }
    }
}

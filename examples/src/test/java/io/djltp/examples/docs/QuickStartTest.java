package io.djltp.examples.docs;

import io.djltp.examples.ForkedTp;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;

/**
 * The quick start of the README, word by word, in an empty folder. The local repository of its
 * Maven has nothing of the library but what this build has made; what it needs from Maven Central
 * it finds where this build's own Maven keeps it, or fetches.
 */
public class QuickStartTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();
    private static final Pattern BLOCK =
            Pattern.compile("^```(\\w+)\\n(.*?)^```$", Pattern.MULTILINE | Pattern.DOTALL);

    private Path folder;
    private List<MatchResult> blocks;

    @BeforeClass
    public void install() throws IOException {
        ForkedTp.skipWithout("bash", "apt-get install bash");
        folder = ROOT.resolve("examples/target/quick-start");
        String readme = Files.readString(ROOT.resolve("README.md"));
        String section = readme.substring(readme.indexOf("## Quick start"));
        section = section.substring(0, section.indexOf("\n## "));
        blocks = BLOCK.matcher(section).results().toList();
        new LocalInstall(ROOT, folder.resolve("repository")).install();
    }

    /** What is shown first is a part of what is built. */
    @Test
    public void fiveLines() {
        String lines = block("xml", 0).strip();
        Assert.assertEquals(lines.lines().count(), 5, lines);
        Assert.assertTrue(
                block("xml", 1).replaceAll(" +", "").contains(lines.replaceAll(" +", "")));
    }

    @Test(timeOut = 300_000)
    public void maven() throws IOException, InterruptedException {
        Path work = LocalInstall.deleted(folder.resolve("try"));
        Path sources = Files.createDirectories(work.resolve("src/main/java"));
        Files.writeString(work.resolve("pom.xml"), block("xml", 1));
        Files.writeString(sources.resolve("Try.java"), block("java", 0));
        Path bin = Files.createDirectories(folder.resolve("bin"));
        Path mvn = Files.writeString(bin.resolve("mvn"), maven(folder.resolve("repository")));
        Assert.assertTrue(mvn.toFile().setExecutable(true));

        Path output = folder.resolve("output.txt");
        ProcessBuilder builder = new ProcessBuilder("bash", "-e", "-c", block("sh", 0));
        builder.environment().put("MAVEN_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1");
        builder.environment().merge("PATH", bin.toString(), (path, own) -> own + ":" + path);
        Process process =
                builder.directory(work.toFile())
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile())
                        .start();
        try {
            boolean ended = process.waitFor(280, TimeUnit.SECONDS);
            String printed = Files.readString(output);
            Assert.assertTrue(ended, printed);
            Assert.assertEquals(process.exitValue(), 0, printed);
            Assert.assertTrue(printed.lines().anyMatch("1.0"::equals), printed);
            Assert.assertTrue(Files.exists(work.resolve("out/try-0010.params")), printed);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    private static String maven(Path repository) {
        String tail =
                System.getProperty(
                        "localRepository", System.getProperty("user.home") + "/.m2/repository");
        return "#!/bin/sh\nexec '"
                + ROOT.resolve("mvnw")
                + "' -B -ntp '-Dmaven.repo.local="
                + repository
                + "' '-Dmaven.repo.local.tail="
                + tail
                + "' -Dmaven.repo.local.tail.ignoreAvailability=true \"$@\"\n";
    }

    private String block(String language, int index) {
        return blocks.stream()
                .filter(each -> each.group(1).equals(language))
                .skip(index)
                .findFirst()
                .orElseThrow()
                .group(2);
    }
}

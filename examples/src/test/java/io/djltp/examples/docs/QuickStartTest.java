package io.djltp.examples.docs;

import static java.nio.file.StandardCopyOption.REPLACE_EXISTING;

import ai.djl.util.Utils;

import io.djltp.examples.ForkedTp;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The quick start of the README, word by word, in an empty folder, with the oldest Maven that it
 * names. The local repository of that Maven has nothing of the library but what this build has
 * made; what it needs from Maven Central it finds where this build's own Maven keeps it, or
 * fetches.
 */
public class QuickStartTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();
    private static final Pattern BLOCK =
            Pattern.compile("^```(\\w+)\\n(.*?)^```$", Pattern.MULTILINE | Pattern.DOTALL);

    // with the library in it; null: what this build has compiled is put into one
    private static final String REPOSITORY = System.getProperty("djltp.quickstart.repository");

    private static final Pattern OLDEST = Pattern.compile("Maven ([0-9.]+[0-9]) or newer");

    private Path folder;
    private Path empty;
    private Path repository;
    private List<MatchResult> blocks;

    @BeforeClass
    public void install() throws IOException {
        ForkedTp.skipWithout("bash", "apt-get install bash");
        folder = ROOT.resolve("examples/target/quick-start");
        empty = Files.createTempDirectory("quick-start").toRealPath();
        String readme = Files.readString(ROOT.resolve("README.md"));
        String section = readme.substring(readme.indexOf("## Quick start"));
        section = section.substring(0, section.indexOf("\n## "));
        blocks = BLOCK.matcher(section).results().toList();
        repository = folder.resolve("repository");
        LocalInstall local = new LocalInstall(ROOT, repository);
        local.linkOthers(central());
        if (REPOSITORY == null) {
            local.install();
        } else {
            Path library = Path.of("io/djltp");
            Files.createSymbolicLink(
                    repository.resolve(library), Path.of(REPOSITORY).resolve(library));
        }
        Matcher oldest = OLDEST.matcher(section);
        Assert.assertTrue(oldest.find(), "the README names no oldest Maven");
        Path bin = Files.createDirectories(folder.resolve("bin"));
        Path wrapper = Files.createDirectories(bin.resolve(".mvn/wrapper"));
        Files.copy(ROOT.resolve("mvnw"), bin.resolve("mvnw"), REPLACE_EXISTING);
        String name = "maven-wrapper.properties";
        String properties = Files.readString(ROOT.resolve(".mvn/wrapper").resolve(name));
        Files.writeString(
                wrapper.resolve(name),
                properties.replaceAll(
                        "apache-maven(.)[0-9.]+[0-9]", "apache-maven$1" + oldest.group(1)));
        Path mvn =
                Files.writeString(
                        bin.resolve("mvn"),
                        "#!/bin/sh\nexec '%s' -B -ntp '-Dmaven.repo.local=%s' \"$@\"\n"
                                .formatted(bin.resolve("mvnw"), repository));
        Assert.assertTrue(mvn.toFile().setExecutable(true));
    }

    @AfterClass(alwaysRun = true)
    public void delete() {
        if (empty != null) {
            Utils.deleteQuietly(empty);
        }
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
        Path work = empty.resolve("maven");
        createProgram(work);
        Files.writeString(work.resolve("pom.xml"), block("xml", 1));
        assertLearns(shell(block("sh", 0)), work);
    }

    /** Where Maven has installed the library: the version comes from the BOM. */
    @Test(dataProvider = "installed", timeOut = 300_000)
    public void bom(String maven) throws IOException, InterruptedException {
        Path work = empty.resolve("bom");
        createProgram(work);
        String version = "\\s*<version>[^<]*</version>(\\s*</dependency>)";
        String pom = block("xml", 1).replaceAll(version, "$1");
        String managed = block("xml", 2) + "  <dependencies>";
        Files.writeString(work.resolve("pom.xml"), pom.replace("  <dependencies>", managed));
        assertLearns(shell(block("sh", 0)), work);
    }

    private ProcessBuilder shell(String commands) throws IOException {
        ProcessBuilder builder = new ProcessBuilder("bash", "-e", "-c", commands);
        builder.environment().put("MAVEN_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1");
        builder.environment().remove("MAVEN_PROJECTBASEDIR"); // of the build's own Maven
        String bin = folder.resolve("bin").toString();
        builder.environment().merge("PATH", bin, (path, own) -> own + ":" + path);
        return builder;
    }

    /** What takes long is tried only where Maven has installed the library. */
    @DataProvider
    public static Object[][] installed() {
        return REPOSITORY == null ? new Object[0][] : new Object[][] {{REPOSITORY}};
    }

    /** The same with Gradle: with Debian's, 4.4, which is told the name of the class otherwise. */
    @Test(dataProvider = "installed", timeOut = 300_000)
    public void gradle(String maven) throws IOException, InterruptedException {
        ForkedTp.skipWithout("gradle", "apt-get install gradle");
        Path work = empty.resolve("gradle");
        createProgram(work);
        String build =
                block("groovy", 0)
                        .replace("application { mainClass = 'Try' }", "mainClassName = 'Try'")
                        .replace("mavenCentral()", "maven { url '" + central().toUri() + "' }");
        Files.writeString(work.resolve("build.gradle"), build);
        ProcessBuilder builder =
                new ProcessBuilder(
                        "gradle", "--no-daemon", "-q", "-Dmaven.repo.local=" + maven, "run");
        assertLearns(builder, work);
    }

    private void createProgram(Path work) throws IOException {
        Path sources = Files.createDirectories(work.resolve("src/main/java"));
        Files.writeString(sources.resolve("Try.java"), block("java", 0));
    }

    private void assertLearns(ProcessBuilder builder, Path work)
            throws IOException, InterruptedException {
        Path output = folder.resolve("output.txt");
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

    /** Returns where this build's own Maven keeps what it has fetched. */
    private static Path central() {
        String given = System.getProperty("maven.repo.local.tail"); // .ci/check-release has one
        String local = System.getProperty("localRepository");
        String home = System.getProperty("user.home") + "/.m2/repository";
        return Path.of(given != null ? given : local != null ? local : home);
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

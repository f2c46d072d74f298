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
import java.util.spi.ToolProvider;
import java.util.stream.Stream;

/**
 * The first program of the guides and its build files, word by word, in an empty folder, with the
 * oldest Maven that the page names. The local repository of that Maven has nothing of the library
 * but what this build has made; what it needs from Maven Central it finds where this build's own
 * Maven keeps it, or fetches.
 */
public class QuickStartTest {
    private static final Path ROOT = SnippetsTest.ROOT;
    private static final Pattern BLOCK = Pattern.compile("(?ms)^```(\\w+)\\n(.*?)^```$");
    // with the library in it; null: what this build has compiled is put into one
    private static final String REPOSITORY = System.getProperty("djltp.quickstart.repository");
    private final Path folder = ROOT.resolve("examples/target/quick-start");
    private final Path repository = folder.resolve("repository");
    private Path empty;
    private String program;
    private String output; // of the program, as the page shows it
    private List<MatchResult> blocks; // of the section about a project

    @BeforeClass
    public void install() throws IOException {
        ForkedTp.skipWithout("bash", "apt-get install bash");
        empty = Files.createTempDirectory("quick-start").toRealPath();
        String page = Files.readString(ROOT.resolve("docs/first-layer.md"));
        program = page.split("```java\n")[1].split("```")[0];
        output = page.split("```\n\n```\n")[1].split("```")[0];
        String section = page.substring(page.indexOf("## In a project of your own"));
        section = section.substring(0, section.indexOf("\n## "));
        blocks = BLOCK.matcher(section).results().toList();
        linkOthers(central());
        Path library = repository.resolve("io/djltp");
        if (REPOSITORY == null) {
            installInto(library);
        } else {
            Files.createSymbolicLink(library, Path.of(REPOSITORY).resolve("io/djltp"));
        }
        String oldest = find("Maven ([0-9.]+[0-9]) or newer", section);
        Path bin = folder.resolve("bin");
        Path wrapper = Files.createDirectories(bin.resolve(".mvn/wrapper"));
        Files.copy(ROOT.resolve("mvnw"), bin.resolve("mvnw"), REPLACE_EXISTING);
        String name = "maven-wrapper.properties";
        String properties = Files.readString(ROOT.resolve(".mvn/wrapper").resolve(name));
        Files.writeString(
                wrapper.resolve(name),
                properties.replaceAll("apache-maven(.)[0-9.]+[0-9]", "apache-maven$1" + oldest));
        Path mvn =
                Files.writeString(
                        bin.resolve("mvn"),
                        "#!/bin/sh\nexec '%s' -B -ntp '-Dmaven.repo.local=%s' \"$@\"\n"
                                .formatted(bin.resolve("mvnw"), repository));
        Assert.assertTrue(mvn.toFile().setExecutable(true));
    }

    private static String find(String pattern, String text) {
        Matcher matcher = Pattern.compile(pattern).matcher(text);
        Assert.assertTrue(matcher.find(), pattern);
        return matcher.group(1);
    }

    /** Empties the repository, and lets all but the library stand where another one has it. */
    private void linkOthers(Path other) throws IOException {
        Utils.deleteQuietly(repository);
        Path group = Files.createDirectories(repository.resolve("io"));
        for (Path from : List.of(other, other.resolve("io"))) {
            try (Stream<Path> entries = Files.list(from)) {
                for (Path entry : entries.toList()) {
                    Path link = repository.resolve(other.relativize(entry));
                    if (!link.equals(group) && !link.equals(group.resolve("djltp"))) {
                        Files.createSymbolicLink(link, entry);
                    }
                }
            }
        }
    }

    /** Puts what is compiled of the library there, as Maven's install does. */
    private static void installInto(Path group) throws IOException {
        String version = version();
        for (String module : List.of("", "tp-blocks/bom", "tp-engine-bridge", "tp-blocks")) {
            String artifact =
                    module.isEmpty()
                            ? "djl-tensor-parallel"
                            : module.endsWith("bom") ? "tp-bom" : module;
            Path to = Files.createDirectories(group.resolve(artifact).resolve(version));
            String name = artifact + "-" + version;
            Files.copy(ROOT.resolve(module).resolve("pom.xml"), to.resolve(name + ".pom"));
            Path classes = ROOT.resolve(module).resolve("target/classes");
            if (Files.isDirectory(classes)) {
                String jar = to.resolve(name + ".jar").toString();
                ToolProvider tool = ToolProvider.findFirst("jar").orElseThrow();
                String[] words = {"--create", "--no-compress", "-f", jar, "-C", "" + classes, "."};
                Assert.assertEquals(tool.run(System.out, System.err, words), 0);
            }
        }
    }

    @AfterClass(alwaysRun = true)
    public void delete() {
        if (empty != null) {
            Utils.deleteQuietly(empty);
        }
    }

    private static String version() throws IOException {
        return find("<version>(.*?)</version>", Files.readString(ROOT.resolve("pom.xml")));
    }

    /** The README and the page name the version of this build, or the release that it becomes. */
    @Test
    public void thePagesNameTheVersion() throws IOException {
        String release = version().replace("-SNAPSHOT", "");
        String dependency = "<artifactId>tp-blocks</artifactId>\\s*<version>(.*?)</version>";
        String readme = Files.readString(ROOT.resolve("README.md"));
        Assert.assertEquals(find(dependency, readme), release);
        Assert.assertEquals(find(dependency, block("xml")), release);
        Assert.assertEquals(find("tp-blocks:([0-9.]+)'", readme), release);
        Assert.assertEquals(find("tp-blocks:([0-9.]+)'", block("groovy")), release);
    }

    @Test(timeOut = 300_000)
    public void maven() throws IOException, InterruptedException {
        learns("maven", "pom.xml", ofThisBuild(block("xml")), "bash", "-e", "-c", block("sh"));
    }

    private static String ofThisBuild(String buildFile) throws IOException {
        String version = version();
        return buildFile.replace(version.replace("-SNAPSHOT", ""), version);
    }

    /** What takes long is tried only where Maven has installed the library. */
    @DataProvider
    public static Object[][] installed() {
        return REPOSITORY == null ? new Object[0][] : new Object[][] {{REPOSITORY}};
    }

    /** Where Maven has installed the library: the version comes from the BOM. */
    @Test(dataProvider = "installed", timeOut = 300_000)
    public void bom(String maven) throws IOException, InterruptedException {
        String version = "(<artifactId>tp-blocks</artifactId>)\\s*<version>[^<]*</version>";
        String bom =
                """
                  <dependencyManagement>
                    <dependencies>
                      <dependency>
                        <groupId>io.djltp</groupId>
                        <artifactId>tp-bom</artifactId>
                        <version>%s</version>
                        <type>pom</type>
                        <scope>import</scope>
                      </dependency>
                    </dependencies>
                  </dependencyManagement>
                """
                        .formatted(version());
        String pom = block("xml").replaceAll(version, "$1");
        pom = pom.replace("  <dependencies>", bom + "  <dependencies>");
        learns("bom", "pom.xml", pom, "bash", "-e", "-c", block("sh"));
    }

    /** The same with Gradle: with Debian's, 4.4, which is told the name of the class otherwise. */
    @Test(dataProvider = "installed", timeOut = 300_000)
    public void gradle(String maven) throws IOException, InterruptedException {
        ForkedTp.skipWithout("gradle", "apt-get install gradle");
        String build =
                ofThisBuild(block("groovy"))
                        .replace("application { mainClass =", "mainClassName =")
                        .replace("'FirstLayer' }", "'FirstLayer'")
                        .replace("mavenCentral()", "maven { url '" + central().toUri() + "' }");
        String local = "-Dmaven.repo.local=" + maven;
        learns("gradle", "build.gradle", build, "gradle", "--no-daemon", "-q", local, "run");
    }

    private void learns(String name, String buildFile, String build, String... command)
            throws IOException, InterruptedException {
        Path work = empty.resolve(name);
        Path sources = Files.createDirectories(work.resolve("src/main/java"));
        Files.writeString(sources.resolve("FirstLayer.java"), program);
        Files.writeString(work.resolve(buildFile), build);
        Path file = folder.resolve("output.txt");
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().put("MAVEN_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1");
        builder.environment().remove("MAVEN_PROJECTBASEDIR"); // of the build's own Maven
        builder.environment().merge("PATH", folder + "/bin", (path, own) -> own + ":" + path);
        Process process =
                builder.directory(work.toFile())
                        .redirectErrorStream(true)
                        .redirectOutput(file.toFile())
                        .start();
        try {
            boolean ended = process.waitFor(280, TimeUnit.SECONDS);
            String printed = Files.readString(file);
            Assert.assertTrue(ended, printed);
            Assert.assertEquals(process.exitValue(), 0, printed);
            for (String line : output.lines().toList()) {
                String start = line.replaceAll("\\d{4}$", ""); // other processors round otherwise
                Assert.assertTrue(printed.lines().anyMatch(e -> e.startsWith(start)), printed);
            }
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

    private String block(String language) {
        return blocks.stream()
                .filter(each -> each.group(1).equals(language))
                .findFirst()
                .orElseThrow()
                .group(2);
    }
}

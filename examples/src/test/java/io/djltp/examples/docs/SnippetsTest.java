package io.djltp.examples.docs;

import io.djltp.examples.ForkedTp;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/**
 * Every block of Java in the README and in the guides is compiled; programs are run. Before a block
 * there may be a comment:
 *
 * <ul>
 *   <li>{@code <!-- java}, lines of Java, {@code -->}: what the reader has, put before the block
 *   <li>{@code <!-- java run}, lines of Java, {@code -->}: the same, and the block is run too
 *   <li>{@code <!-- java skipped: WHY -->}: the block cannot be compiled alone
 *   <li>one of the first two before a block of {@code diff}: what it comes to, the lines without
 *       those that it takes away
 * </ul>
 *
 * and after a block {@code <!-- java then}, lines of Java, {@code -->}: what is checked when it has
 * run. A snippet stands in its source at the lines of its page, so that errors have these.
 */
public class SnippetsTest {
    static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();
    private static final Pattern BLOCK =
            Pattern.compile(
                    "(?ms)(?:^<!-- java( run)?(?:\n(?:(?!^<!--).)*?| skipped: (?!-->)([^\n]+))"
                            + "-->\\s+)?"
                            + "^```java\n(.*?)^```$(\n+<!-- java then\n.*?-->)?");
    private static final Pattern DIFF =
            Pattern.compile(
                    "(?ms)^(<!-- java(?: run)?\n(?:(?!^<!--).)*?-->\\s+)```diff\n(.*?)^```$");
    private static final Pattern UNREAD = Pattern.compile("(?m)^\\s*(```java|<!-- java)");
    private static final Pattern MARKS = Pattern.compile("(?m)^(?:<!-- java.*|-->|```.*)$");
    private static final Pattern CLASS =
            Pattern.compile("(?m)^public (?:final )?(?:class|record|interface) (\\w+)");
    private static final Pattern DOTS = Pattern.compile("(?<![\\w.\\]>])\\.\\.\\.(?![\\w.])");
    private static final Pattern IMPORT = Pattern.compile("(?m)^import .*;$");

    /** What fragments are assumed to import, beside all packages of the library. */
    private static final String PACKAGES =
            "ai.djl ai.djl.engine ai.djl.inference ai.djl.metric ai.djl.modality"
                    + " ai.djl.modality.nlp.generate"
                    + " ai.djl.ndarray ai.djl.ndarray.types ai.djl.nn ai.djl.nn.core"
                    + " ai.djl.nn.norm ai.djl.repository.zoo ai.djl.training"
                    + " ai.djl.training.dataset ai.djl.training.evaluator"
                    + " ai.djl.training.initializer ai.djl.training.listener"
                    + " ai.djl.training.loss ai.djl.training.optimizer"
                    + " ai.djl.training.tracker ai.djl.translate ai.djl.util java.io"
                    + " java.nio.file java.time java.util java.util.function java.util.stream";

    private Path folder;

    @BeforeMethod
    public void create() throws IOException {
        folder = TestFolder.create().toRealPath();
    }

    /** A block that is compiled: a source file, of whose class the name has the page and line. */
    private record Snippet(Path page, boolean run, String packageName, String type, String source) {
        Path file(Path folder) {
            return folder.resolve(packageName.replace('.', '/')).resolve(type + ".java");
        }
    }

    /** Returns the pages: those at the root, in {@code docs} and in {@code docs/decisions}. */
    static List<Path> pages() throws IOException {
        Path docs = ROOT.resolve("docs");
        try (Stream<Path> top = Files.list(ROOT);
                Stream<Path> guides = Files.list(docs);
                Stream<Path> decisions = Files.list(docs.resolve("decisions"))) {
            return Stream.of(top, guides, decisions)
                    .flatMap(files -> files)
                    .filter(path -> path.toString().endsWith(".md"))
                    .sorted()
                    .toList();
        }
    }

    private static List<Snippet> read(Path page, String markdown) throws IOException {
        String text = DIFF.matcher(markdown).replaceAll(SnippetsTest::changed);
        Matcher rest = UNREAD.matcher(BLOCK.matcher(text).replaceAll(""));
        Assert.assertFalse(rest.find(), page + " has a block of Java that cannot be read");
        String imports = imports();
        List<Snippet> snippets = new ArrayList<>();
        for (MatchResult block : BLOCK.matcher(text).results().toList()) {
            if (block.group(2) == null) { // it is not skipped
                int line = (int) text.substring(0, block.start()).lines().count() + 1;
                snippets.add(snippet(page, line, block, imports));
            }
        }
        return snippets;
    }

    /** Returns what a diff comes to as a block of Java, at the same lines. */
    private static String changed(MatchResult diff) {
        String lines = diff.group(2).replaceAll("(?m)^-.*$", "").replaceAll("(?m)^[ +]", "");
        return Matcher.quoteReplacement(diff.group(1) + "```java\n" + lines + "```");
    }

    private static Snippet snippet(Path page, int line, MatchResult block, String imports) {
        String name = page.getFileName().toString().replaceAll("\\W", "_");
        String packageName = "snippets." + name + "_" + line;
        String code = block.group(3);
        String bare = code.replaceAll("(?m)//.*$", "").strip();
        String all = block.group();
        if (!bare.isEmpty() && !bare.endsWith(";") && !bare.endsWith("}")) { // an expression
            all = all.replace("```java\n" + code + "```", "\nObject expression = " + code + ";");
        }
        all = DOTS.matcher(MARKS.matcher(all).replaceAll("")).replaceAll("");
        String start = "package " + packageName + ";";
        String lines = "\n".repeat(line - 1);
        Matcher type = CLASS.matcher(all);
        if (type.find()) {
            boolean run = all.contains("static void main(String");
            return new Snippet(page, run, packageName, type.group(1), start + lines + all);
        }
        String own =
                IMPORT.matcher(all).results().map(MatchResult::group).collect(Collectors.joining());
        start += imports + own + "public final class Snippet { ";
        start += "public static void main(String[] args) throws Throwable { ";
        String source = start + lines + IMPORT.matcher(all).replaceAll("") + "\n}}";
        return new Snippet(page, block.group(1) != null, packageName, "Snippet", source);
    }

    private static String imports() throws IOException {
        List<String> packages = new ArrayList<>(List.of(PACKAGES.split(" ")));
        for (String module :
                List.of("tp-engine-bridge", "tp-blocks", "tp-blocks/llm", "examples")) {
            Path sources = ROOT.resolve(module).resolve("src/main/java");
            try (Stream<Path> files = Files.walk(sources)) {
                files.filter(file -> file.endsWith("package-info.java"))
                        .map(file -> sources.relativize(file.getParent()).toString())
                        .forEach(name -> packages.add(name.replaceAll("[/\\\\]", ".")));
            }
        }
        return "import " + String.join(".*;import ", packages) + ".*;";
    }

    /** Compiles snippets, and returns the errors, each with its page and line. */
    private List<String> compile(List<Snippet> snippets) throws IOException {
        List<Path> files = new ArrayList<>();
        for (Snippet each : snippets) {
            Files.createDirectories(each.file(folder).getParent());
            files.add(Files.writeString(each.file(folder), each.source()));
        }
        var compiler = ToolProvider.getSystemJavaCompiler();
        DiagnosticCollector<JavaFileObject> found = new DiagnosticCollector<>();
        List<String> options = new ArrayList<>(List.of("-d", folder.toString(), "-proc:none"));
        options.addAll(List.of("-g", "-cp", System.getProperty("java.class.path")));
        try (StandardJavaFileManager manager = compiler.getStandardFileManager(found, null, null)) {
            var sources = manager.getJavaFileObjectsFromPaths(files);
            compiler.getTask(null, manager, found, options, null, sources).call();
        }
        return found.getDiagnostics().stream()
                .filter(each -> each.getKind() == Diagnostic.Kind.ERROR)
                .map(
                        each -> {
                            int source = files.indexOf(Path.of(each.getSource().toUri()));
                            Path page = snippets.get(source).page();
                            return page + ":" + each.getLineNumber() + ": " + each.getMessage(null);
                        })
                .toList();
    }

    @Test(timeOut = 300_000)
    public void everySnippetCompilesAndProgramsRun() throws IOException, InterruptedException {
        List<Snippet> snippets = new ArrayList<>();
        for (Path page : pages()) {
            snippets.addAll(read(ROOT.relativize(page), Files.readString(page)));
        }
        List<Snippet> programs = snippets.stream().filter(Snippet::run).toList();
        Assert.assertTrue(snippets.size() > 20 && programs.size() > 8, snippets.size() + " found");
        StringBuilder all = new StringBuilder("package all; public final class All { ");
        all.append("public static void main(String[] args) throws Throwable {\n");
        for (Snippet each : programs) {
            String name = each.packageName() + "." + each.type();
            all.append("System.out.println(\"%s\");%s.main(args);\n".formatted(name, name));
        }
        snippets.add(new Snippet(Path.of("all"), true, "all", "All", all + "System.exit(0);}}"));
        List<String> errors = compile(snippets);
        Assert.assertEquals(errors, List.of(), String.join("\n", errors));
        List<String> command = ForkedTp.command();
        int classes = command.indexOf("-cp") + 1;
        command.set(classes, folder + File.pathSeparator + command.get(classes));
        command.set(command.size() - 1, "all.All");
        command.add(1, "-Xmx1g");
        command.remove("-Xmx512m");
        Path output = folder.resolve("output.txt");
        Process process =
                new ProcessBuilder(command)
                        .directory(Files.createDirectories(folder.resolve("work")).toFile())
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile())
                        .start();
        try {
            Assert.assertTrue(process.waitFor(280, TimeUnit.SECONDS), Files.readString(output));
            Assert.assertEquals(process.exitValue(), 0, Files.readString(output));
        } finally {
            process.destroyForcibly();
        }
    }

    /** What is wrong in a page is found, at its line; and what is right is not. */
    @Test(timeOut = 60_000)
    public void errorsHaveTheLinesOfThePage() throws IOException {
        String text =
                """
                # A page
                ```java
                int a = 1;
                int b = "no";
                ```
                <!-- java
                import java.math.BigInteger;
                int c = d;
                -->
                ```java
                BigInteger e = BigInteger.valueOf(f);
                ```
                <!-- java then
                g();
                -->
                ```java
                public class Whole {
                    int h = i;
                }
                ```
                ```java
                ParallelConfig.builder()          // an expression
                        .setRanks(2)
                ```
                <!-- java skipped: not Java -->
                ```java
                no Java
                ```
                <!-- java run
                -->
                ```java
                try (Model model = Model.newInstance("a")) {
                    ...                           // what the reader has
                }
                ```
                <!-- java
                -->
                ```diff
                 int j = 1;
                -int k = l;
                +int m = n;
                ```
                """;
        List<Snippet> snippets = read(Path.of("page.md"), text);
        Assert.assertEquals(
                snippets.stream().map(Snippet::run).toList(),
                List.of(false, false, false, false, true, false));
        List<String> errors = compile(snippets);
        String[] places = {
            "4: incompatible types",
            "8: cannot",
            "11: cannot",
            "14: cannot",
            "18: cannot",
            "41: cannot"
        };
        Assert.assertEquals(errors.size(), places.length, errors.toString());
        for (int i = 0; i < places.length; i++) {
            Assert.assertTrue(errors.get(i).startsWith("page.md:" + places[i]), errors.toString());
        }
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {"<!-- java skipped: -->\n```java\n```"},
            {"<!-- java sometimes -->\n```java\n```"},
            {"\n```java\nint a;"},
            {"- a list\n  ```java\n  ```"},
        };
    }

    @Test(dataProvider = "wrong")
    public void aBlockThatCannotBeReadIsAnError(String text) {
        Refusals.expect(
                AssertionError.class, () -> read(Path.of("page.md"), text), "page.md has a block");
    }
}

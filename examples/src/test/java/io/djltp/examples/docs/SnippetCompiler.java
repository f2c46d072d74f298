package io.djltp.examples.docs;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/**
 * Compiles snippets, all at once. Each becomes a source file in which it stands at the lines at
 * which it stands in its page, so that errors and stack traces have the lines of the page.
 */
final class SnippetCompiler {

    /**
     * What the fragments of the pages are assumed to import, beside all packages of the library.
     */
    private static final String PACKAGES =
            "ai.djl ai.djl.engine ai.djl.inference ai.djl.metric ai.djl.modality"
                    + " ai.djl.ndarray ai.djl.ndarray.types ai.djl.nn ai.djl.nn.core"
                    + " ai.djl.nn.norm ai.djl.repository.zoo ai.djl.training"
                    + " ai.djl.training.dataset ai.djl.training.evaluator"
                    + " ai.djl.training.initializer ai.djl.training.listener"
                    + " ai.djl.training.loss ai.djl.training.optimizer"
                    + " ai.djl.training.tracker ai.djl.translate ai.djl.util java.io"
                    + " java.nio.file java.time java.util java.util.function java.util.stream";

    private static final Pattern IMPORT = Pattern.compile("(?m)^import .*;$");

    private final Path root;
    private final Path folder;

    /**
     * @param root the root of the repository
     * @param folder where sources and classes are put
     */
    SnippetCompiler(Path root, Path folder) {
        this.root = root;
        this.folder = folder;
    }

    /** Compiles snippets, and returns the errors, each with its page and line. */
    List<String> compile(List<Snippet> snippets) throws IOException {
        String imports = imports();
        List<Path> files = new ArrayList<>();
        for (Snippet snippet : snippets) {
            Path file = file(snippet);
            Files.createDirectories(file.getParent());
            files.add(Files.writeString(file, source(snippet, imports)));
        }
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        DiagnosticCollector<JavaFileObject> found = new DiagnosticCollector<>();
        try (StandardJavaFileManager manager = compiler.getStandardFileManager(found, null, null)) {
            List<String> options =
                    List.of(
                            "-d",
                            Files.createDirectories(folder.resolve("classes")).toString(),
                            "-cp",
                            System.getProperty("java.class.path"),
                            "-proc:none",
                            "-g");
            compiler.getTask(
                            null,
                            manager,
                            found,
                            options,
                            null,
                            manager.getJavaFileObjectsFromPaths(files))
                    .call();
        }
        return found.getDiagnostics().stream()
                .filter(each -> each.getKind() == Diagnostic.Kind.ERROR)
                .map(each -> inPage(each, snippets))
                .toList();
    }

    private Path file(Snippet snippet) {
        return folder.resolve("src")
                .resolve(snippet.packageName().replace('.', '/'))
                .resolve(snippet.className() + ".java");
    }

    private String inPage(Diagnostic<? extends JavaFileObject> error, List<Snippet> snippets) {
        String page =
                snippets.stream()
                        .filter(each -> error.getSource() != null && isOf(error.getSource(), each))
                        .map(each -> each.page() + ":" + error.getLineNumber())
                        .findFirst()
                        .orElse("");
        return page + ": " + error.getMessage(null);
    }

    private boolean isOf(JavaFileObject source, Snippet snippet) {
        return Path.of(source.toUri()).equals(file(snippet).toAbsolutePath());
    }

    /** Returns the source: what comes before the first line of the snippet is one line. */
    private static String source(Snippet snippet, String imports) {
        String start = "package " + snippet.packageName() + ";";
        String lines = "\n".repeat(snippet.line() - 1);
        if (snippet.isFile()) {
            return start + lines + snippet.text();
        }
        Matcher own = IMPORT.matcher(snippet.text());
        start += imports + own.results().map(MatchResult::group).collect(Collectors.joining());
        start += "public final class Snippet { ";
        if (snippet.mark() == Snippet.Mark.MEMBERS) {
            return start + lines + own.replaceAll("") + "\n}";
        }
        start += "public static void main(String[] args) throws Throwable { ";
        return start + lines + IMPORT.matcher(snippet.statements()).replaceAll("") + "\n}}";
    }

    private String imports() throws IOException {
        List<String> packages = new ArrayList<>(List.of(PACKAGES.split(" ")));
        for (String module : List.of("tp-engine-bridge", "tp-blocks", "examples")) {
            Path sources = root.resolve(module).resolve("src/main/java");
            try (Stream<Path> files = Files.walk(sources)) {
                files.filter(file -> file.endsWith("package-info.java"))
                        .map(file -> sources.relativize(file.getParent()).toString())
                        .forEach(name -> packages.add(name.replaceAll("[/\\\\]", ".")));
            }
        }
        return packages.stream()
                .map(name -> "import " + name + ".*;")
                .collect(Collectors.joining());
    }
}

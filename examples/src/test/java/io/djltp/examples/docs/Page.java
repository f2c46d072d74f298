package io.djltp.examples.docs;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * A page of the documentation. Before a block of Java there may be a comment:
 *
 * <ul>
 *   <li>{@code <!-- java}, lines of Java, {@code -->}: what the reader has, put before the block
 *   <li>{@code <!-- java run}, lines of Java, {@code -->}: the same, and the block is run too
 *   <li>{@code <!-- java members ... -->}: the block is methods of a class
 *   <li>{@code <!-- java skipped: WHY -->}: the block cannot be compiled alone
 * </ul>
 *
 * and after a block {@code <!-- java then}, lines of Java, {@code -->}: what is checked when it has
 * run.
 */
final class Page {

    private static final String FENCE = "```";
    private static final String THEN = "<!-- java then";
    private static final Pattern COMMENT =
            Pattern.compile("<!-- java(?: (run|members|then|skipped: *(.*?)))?(?: *-->)?");

    private final Path path;
    private final List<String> lines;
    private final List<Snippet> snippets = new ArrayList<>();

    private Page(Path path, List<String> lines) {
        this.path = path;
        this.lines = lines;
    }

    /** Returns the snippets of the README, and of all pages below {@code docs}. */
    static List<Snippet> readAll(Path root) throws IOException {
        List<Snippet> snippets = new ArrayList<>();
        for (Path page : paths(root)) {
            snippets.addAll(read(root.relativize(page), Files.readAllLines(page)));
        }
        return snippets;
    }

    /** Returns the pages: those at the root, and those below {@code docs}. */
    static List<Path> paths(Path root) throws IOException {
        try (Stream<Path> top = Files.list(root);
                Stream<Path> docs = Files.walk(root.resolve("docs"))) {
            return Stream.concat(top, docs)
                    .filter(path -> path.toString().endsWith(".md"))
                    .sorted()
                    .toList();
        }
    }

    /** Returns the snippets of a page. */
    static List<Snippet> read(Path path, List<String> lines) {
        Page page = new Page(path, lines);
        for (int line = 0; line < lines.size(); line++) {
            if (lines.get(line).equals(FENCE + "java")) {
                line = page.add(line);
            } else if (lines.get(line).startsWith(FENCE)) {
                line = page.closingFence(line);
            } else {
                page.refuseIndented(line);
            }
        }
        return page.snippets;
    }

    private void refuseIndented(int line) {
        if (lines.get(line).strip().startsWith(FENCE + "java")) {
            throw error(line, "a block of Java begins with exactly " + FENCE + "java");
        }
    }

    /** Adds the block that begins at a line, and returns its last line. */
    private int add(int fence) {
        int end = closingFence(fence);
        int before = commentBefore(fence);
        int after = commentAfter(end);
        Snippet.Mark mark = Snippet.Mark.COMPILED;
        if (before < fence) {
            mark = mark(before);
        }
        List<String> code = new ArrayList<>(lines.subList(before, after + 1));
        if (before < fence) {
            Collections.fill(code.subList(0, 1), "");
            int last = lastLineOf(before) - before;
            Collections.fill(code.subList(last, fence + 1 - before), "");
        } else {
            code.set(0, "");
        }
        code.set(end - before, "");
        if (after > end) {
            Collections.fill(code.subList(end - before, commentStart(end) + 1 - before), "");
            code.set(after - before, "");
        }
        Snippet.Range shown = new Snippet.Range(fence + 1 - before, end - before);
        snippets.add(new Snippet(path, before + 1, mark, shown, code));
        return after;
    }

    private Snippet.Mark mark(int line) {
        Matcher matcher = COMMENT.matcher(lines.get(line));
        if (!matcher.matches() || "then".equals(matcher.group(1))) {
            throw error(line, "not a comment of a block of Java: " + lines.get(line));
        }
        if (matcher.group(1) == null) {
            return Snippet.Mark.COMPILED;
        }
        if (matcher.group(2) == null) {
            return matcher.group(1).equals("run") ? Snippet.Mark.RUN : Snippet.Mark.MEMBERS;
        }
        if (matcher.group(2).isBlank()) {
            throw error(line, "say why the block is skipped");
        }
        return Snippet.Mark.SKIPPED;
    }

    private int closingFence(int fence) {
        for (int line = fence + 1; line < lines.size(); line++) {
            if (lines.get(line).equals(FENCE)) {
                return line;
            }
        }
        throw error(fence, "the block does not end");
    }

    /** Returns the line at which the comment before a fence begins, or the fence. */
    private int commentBefore(int fence) {
        int line = fence - 1;
        while (line >= 0 && lines.get(line).isBlank()) {
            line--;
        }
        if (line < 0 || !lines.get(line).endsWith("-->")) {
            return fence;
        }
        while (line >= 0 && !lines.get(line).startsWith("<!--")) {
            line--;
        }
        boolean ofThis =
                line >= 0
                        && lines.get(line).startsWith("<!-- java")
                        && !lines.get(line).equals(THEN);
        return ofThis ? line : fence;
    }

    private int commentStart(int end) {
        int line = end + 1;
        while (line < lines.size() && lines.get(line).isBlank()) {
            line++;
        }
        return line;
    }

    /** Returns the last line of the comment after a block, or the end of the block. */
    private int commentAfter(int end) {
        int line = commentStart(end);
        return line < lines.size() && lines.get(line).equals(THEN) ? lastLineOf(line) : end;
    }

    private int lastLineOf(int comment) {
        for (int line = comment; line < lines.size(); line++) {
            if (lines.get(line).endsWith("-->")) {
                return line;
            }
        }
        throw error(comment, "the comment does not end");
    }

    private IllegalArgumentException error(int line, String message) {
        return new IllegalArgumentException(path + ":" + (line + 1) + ": " + message);
    }
}

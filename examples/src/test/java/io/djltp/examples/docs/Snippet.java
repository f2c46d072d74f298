package io.djltp.examples.docs;

import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A block of Java in a page, with what its comments say of it.
 *
 * @param page the page, from the root of the repository
 * @param line the number of the line of the page at which {@code lines} begin, from 1
 * @param mark what the comment before the block says
 * @param shown the indexes in {@code lines} of the first line of the block, and behind its last
 * @param lines the lines of the page from the comment to the last line of the block, and of a
 *     comment after it, those that are not Java left empty
 */
record Snippet(Path page, int line, Mark mark, Range shown, List<String> lines) {

    private static final Pattern CLASS =
            Pattern.compile(
                    "^public (?:final )?(?:class|record|interface) (\\w+)", Pattern.MULTILINE);
    private static final Pattern MAIN = Pattern.compile("static void main\\(String");
    private static final Pattern COMMENTS = Pattern.compile("(?m)//.*$");
    private static final Pattern DOTS = Pattern.compile("(?<![\\w.\\]>])\\.\\.\\.(?![\\w.])");

    /**
     * Some lines.
     *
     * @param begin the first
     * @param end behind the last
     */
    record Range(int begin, int end) {}

    /** What a comment says of a block. */
    enum Mark {
        /** Nothing: the block is compiled. */
        COMPILED,
        /** The block is compiled and run. */
        RUN,
        /** The block is methods of a class. */
        MEMBERS,
        /** The block is not Java that could be compiled alone: the comment says why. */
        SKIPPED
    }

    /** Returns whether this is a file with a class, and not some lines of a method. */
    boolean isFile() {
        return CLASS.matcher(text()).find();
    }

    /** Returns whether this is compiled and then run. */
    boolean isRun() {
        return mark == Mark.RUN || mark == Mark.COMPILED && isFile() && isProgram();
    }

    private boolean isProgram() {
        return MAIN.matcher(text()).find();
    }

    /** Returns the name of the package that the class is put into: it has the page and the line. */
    String packageName() {
        String name = page.getFileName().toString().replaceAll("\\W", "_");
        return "snippets." + name + "_" + line;
    }

    /** Returns the name of the class that is compiled. */
    String className() {
        Matcher matcher = CLASS.matcher(text());
        return matcher.find() ? matcher.group(1) : "Snippet";
    }

    /** Returns the code as it is compiled: three dots stand for what the reader has. */
    String text() {
        return text(0, lines.size());
    }

    /**
     * Returns the code as the lines of a method. What is shown may be an expression alone, which is
     * made a statement.
     */
    String statements() {
        String code = text(shown.begin(), shown.end());
        String bare = COMMENTS.matcher(code).replaceAll("").strip();
        if (!bare.isEmpty() && !bare.endsWith(";") && !bare.endsWith("}")) {
            code = "Object expression = " + code + "\n;";
        } else {
            code += "\n";
        }
        return text(0, shown.begin()) + "\n" + code + text(shown.end(), lines.size());
    }

    private String text(int begin, int end) {
        return DOTS.matcher(String.join("\n", lines.subList(begin, end))).replaceAll("");
    }

    @Override
    public String toString() {
        return page + ":" + line;
    }
}

package io.djltp.examples.train;

import io.djltp.classes.ClassData;
import io.djltp.examples.BadInputException;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import java.util.function.Consumer;

/** The options that say how to read a user's own data. */
public final class DataOptions {

    /** The file, or {@code null}. */
    @Option(
            names = "--data",
            description =
                    "A file of rows with labels: text with __label__, TSV, CSV or JSON lines;"
                            + " LIBSVM or Extreme Classification; .npy or .safetensors.")
    public @Nullable Path data;

    @Option(
            names = "--label-file",
            description = "The labels of the --data, if they are in another file.")
    private @Nullable Path labelFile;

    @Option(
            names = "--filter-file",
            description =
                    "Pairs of row and label of the --data that do not count, of Extreme"
                            + " Classification: numbers from 0, a pair a line.")
    private @Nullable Path filterFile;

    @Option(
            names = "--format",
            description = "${COMPLETION-CANDIDATES} (what the file begins with).")
    private ClassData.@Nullable Format format;

    @Option(
            names = "--fields",
            paramLabel = "TEXT,LABEL",
            split = ",",
            description = "The names of the fields of CSV, TSV and JSON lines.")
    private String @Nullable [] fields;

    @Option(
            names = "--label-separator",
            paramLabel = "CHAR",
            description =
                    "What separates the labels of a field of CSV or TSV (nothing: it is one label).")
    private @Nullable Character separator;

    @Option(
            names = "--skip-bad-lines",
            defaultValue = "0",
            description =
                    "How many lines that cannot be read are left out; one more is an error"
                            + " (${DEFAULT-VALUE}).")
    private int skipBadLines;

    /** Creates the options, which are set by the command line. */
    public DataOptions() {}

    /** Checks what can be checked before the file is read. */
    public void check() {
        boolean without = data == null;
        if (without
                && (labelFile != null
                        || filterFile != null
                        || format != null
                        || fields != null
                        || separator != null
                        || skipBadLines != 0)) {
            throw new BadInputException(
                    "--label-file, --filter-file, --format, --fields, --label-separator and"
                            + " --skip-bad-lines say how to read --data: name a file");
        }
        if (fields != null && fields.length != 2) {
            throw new BadInputException(
                    "--fields needs two names, TEXT,LABEL, not %s", String.join(",", fields));
        }
        if (skipBadLines < 0) {
            throw new BadInputException("--skip-bad-lines must be 0 or more, not " + skipBadLines);
        }
        checkFile("--data", data);
        checkFile("--label-file", labelFile);
        checkFile("--filter-file", filterFile);
    }

    /**
     * Checks that a file is there.
     *
     * @param option the option that names it
     * @param file the file, or {@code null}
     */
    public static void checkFile(String option, @Nullable Path file) {
        if (file != null && !Files.isReadable(file)) {
            throw new BadInputException("%s %s cannot be read: name a file", option, file);
        }
        if (file != null && Files.isDirectory(file)) {
            throw new BadInputException("%s %s is a folder: name a file", option, file);
        }
    }

    /**
     * The files of some rows.
     *
     * @param option the option that names the file
     * @param file the file
     * @param labels the file of its labels, or {@code null}
     * @param filter the file of pairs that do not count, or {@code null}
     */
    public record Source(String option, Path file, @Nullable Path labels, @Nullable Path filter) {}

    /**
     * Returns the files of {@code --data}, which must be there.
     *
     * @return the files
     */
    public Source source() {
        if (data == null) {
            throw new BadInputException("Name the file of the rows: --data FILE");
        }
        return new Source("--data", data, labelFile, filterFile);
    }

    /**
     * Reads files.
     *
     * @param source the files
     * @param more sets what else the command knows
     * @return the data
     */
    public ClassData read(Source source, Consumer<ClassData.Builder> more) {
        try {
            ClassData.Builder builder =
                    ClassData.builder(source.file).optSkipBadLines(skipBadLines);
            Optional.ofNullable(format).ifPresent(builder::optFormat);
            Optional.ofNullable(source.labels).ifPresent(builder::optLabelFile);
            Optional.ofNullable(source.filter).ifPresent(builder::optFilterFile);
            Optional.ofNullable(separator).ifPresent(builder::optLabelSeparator);
            if (fields != null) {
                builder.optFields(fields[0], fields[1]);
            }
            more.accept(builder);
            return builder.build();
        } catch (IllegalArgumentException e) {
            throw new BadInputException(source.option + ": " + e.getMessage(), e);
        } catch (IOException e) {
            throw new BadInputException(
                    "%s %s cannot be read (%s: %s)"
                            .formatted(
                                    source.option,
                                    source.file,
                                    e.getClass().getSimpleName(),
                                    e.getMessage()),
                    e);
        }
    }
}

package io.djltp.classes;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.classes.RowFile.BadRow;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.function.Function;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * A file of rows with labels: texts, sparse features or dense vectors, one label a row or many.
 * {@link Builder#build()} reads the file once, numbers the classes, counts, and notes where blocks
 * of rows begin; batches are read from the file again, which may be larger than memory. 10 GB of
 * rows take some megabytes of memory, and each class about 30 bytes. A file of lines may be packed
 * by gzip, and is then unpacked as it is read.
 *
 * <p>The features of a row are a text, or sparse features with values, or a dense vector; see
 * {@link Format}. A batch of {@link #newDataset} has, with the batch as the first axis:
 *
 * <ul>
 *   <li>data of texts: the rows of the table that {@link TextFeatures} finds, int32 [batch,
 *       places]; 0 fills up
 *   <li>data of sparse features: int32 [batch, places], feature f of the file being f + 1, where 0
 *       fills up; and their values, float32 [batch, places]
 *   <li>data of dense vectors: float32 [batch, features]
 *   <li>labels, one a row: int64 [batch]; -100, which losses and evaluators leave out, where the
 *       label has no class
 *   <li>labels, many a row: int64 [batch, width], those of a row ascending and without repeats,
 *       then -1
 *   <li>indices: the numbers of the rows, from 0
 * </ul>
 *
 * <p>Places and width are those of the longest row of the batch, and at least 1. Safe for use by
 * several threads.
 */
public final class ClassData {

    /** How a file says features and labels. */
    public enum Format {
        /** Lines of text, in which words that begin with {@code __label__} are labels. */
        FASTTEXT(Features.TEXT),
        /** Fields that tabs separate, without quotes. */
        TSV(Features.TEXT),
        /** Fields that commas separate, with quotes (RFC 4180). */
        CSV(Features.TEXT),
        /** A JSON object a line. A label is a string or number, or an array of them. */
        JSONL(Features.TEXT),
        /**
         * {@code 1,2 3:0.5 17:1} a line: labels that commas separate, then features. Empty lines
         * and what follows a {@code #} do not count.
         */
        LIBSVM(Features.SPARSE),
        /** As LIBSVM, with a line {@code rows features labels} before; numbers are from 0. */
        XC_OLD(Features.SPARSE),
        /**
         * Two files, {@code X_Xf.txt} and {@code X_Y.txt}, each with a line {@code rows columns}
         * and then {@code column:value} for each row; numbers are from 0.
         */
        XC_NEW(Features.SPARSE),
        /**
         * A NumPy array [rows, features] of float16, float32 or float64. The labels are another of
         * integers, [rows] or [rows, width] where -1 fills up, or a text file with a line a row.
         */
        NPY(Features.DENSE),
        /** Tensors {@code features} and {@code labels}, as those of {@link #NPY}. */
        SAFETENSORS(Features.DENSE);

        private final Features features;

        Format(Features features) {
            this.features = features;
        }

        /**
         * Returns what the features are.
         *
         * @return texts, sparse features or dense vectors
         */
        public Features getFeatures() {
            return features;
        }
    }

    /** What the features of a row are. */
    public enum Features {
        /** A text. */
        TEXT("a text"),
        /** Numbers of features, each with a value. */
        SPARSE("an object of ids, which are integers, and as many finite values"),
        /** A vector. */
        DENSE("a list of finite numbers");

        private final String expected;

        Features(String expected) {
            this.expected = expected;
        }

        /** Reads a row, or throws any exception. */
        private Row read(JsonElement json) {
            if (this == TEXT) {
                String text = json.getAsJsonPrimitive().getAsString();
                // half of a surrogate pair is no text
                boolean valid = StandardCharsets.UTF_8.newEncoder().canEncode(text);
                Errors.check(json.toString().startsWith("\"") && valid, "");
                return Row.ofText(text);
            }
            if (this == DENSE) {
                return Row.ofVector(numbers(json));
            }
            Map<String, JsonElement> fields = json.getAsJsonObject().asMap();
            float[] values = numbers(Objects.requireNonNull(fields.get("values")));
            int[] ids =
                    Objects.requireNonNull(fields.get("ids")).getAsJsonArray().asList().stream()
                            .mapToInt(id -> Integer.parseInt(id.toString()))
                            .toArray();
            Errors.check(fields.size() == 2 && ids.length == values.length, "");
            return Row.ofFeatures(ids, values);
        }

        private static float[] numbers(JsonElement json) {
            JsonArray array = json.getAsJsonArray();
            float[] numbers = new float[array.size()];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = Float.parseFloat(array.get(i).toString());
                Errors.check(Float.isFinite(numbers[i]), "");
            }
            return numbers;
        }
    }

    /**
     * A row.
     *
     * @param number its number, from 0
     * @param text its text, or {@code null} if the file has none
     * @param ids its sparse features, from 0, or {@code null}
     * @param values their values, or its dense vector, or {@code null}
     * @param classes its classes, ascending; those that are unknown left out
     */
    public record Row(
            long number,
            @Nullable String text,
            int @Nullable [] ids,
            float @Nullable [] values,
            int[] classes) {

        /**
         * Creates a row to ask for.
         *
         * @param text its text
         * @return the row, without classes
         */
        public static Row ofText(String text) {
            return new Row(0, text, null, null, new int[0]);
        }

        /**
         * Creates a row to ask for.
         *
         * @param ids its sparse features, from 0
         * @param values their values
         * @return the row, without classes
         */
        public static Row ofFeatures(int[] ids, float[] values) {
            return new Row(0, null, ids, values, new int[0]);
        }

        /**
         * Creates a row to ask for.
         *
         * @param values its dense vector
         * @return the row, without classes
         */
        public static Row ofVector(float[] values) {
            return new Row(0, null, null, values, new int[0]);
        }

        /**
         * Reads rows to ask for, as {@code tp serve} and DJL Serving take them.
         *
         * @param features what the rows have
         * @param inputs a row or a list of rows: a string, an object with {@code ids} and {@code
         *     values}, or a list of numbers each
         * @return the rows, without classes
         * @throws IllegalArgumentException if there is none, or one is something else
         */
        public static List<Row> ofJson(Features features, JsonElement inputs) {
            boolean one = isOne(features, inputs);
            List<JsonElement> all = one ? List.of(inputs) : inputs.getAsJsonArray().asList();
            Errors.check(!all.isEmpty(), "The inputs are an empty list");
            List<Row> rows = new ArrayList<>();
            for (JsonElement each : all) {
                try {
                    rows.add(features.read(each));
                } catch (RuntimeException e) { // of Gson too
                    String shown = each.toString();
                    throw Errors.argument(
                            "Input %s must be %s, not %s",
                            rows.size(),
                            features.expected,
                            shown.substring(0, Math.min(80, shown.length())));
                }
            }
            return rows;
        }

        /** Returns whether inputs are a row, and no list of rows. */
        static boolean isOne(Features features, JsonElement inputs) {
            return !(inputs instanceof JsonArray array)
                    || features == Features.DENSE
                            && !array.isEmpty()
                            && array.get(0).isJsonPrimitive();
        }
    }

    final DataSource source;
    final RowIndex index;
    final Function<? super String, int[]> textFeatures;
    private final ClassNames classes;
    private final boolean manyLabels;
    private final int featureCount;
    private final long[] classCounts;
    private final long[] filter;
    private final long unknownLabels;
    private final long unknownFeatures;

    private ClassData(Builder builder, DataSource source) throws IOException {
        this.source = source;
        Scan scan = new Scan(builder, source);
        textFeatures = builder.textFeatures;
        index = scan.index;
        classes = scan.classes;
        manyLabels = builder.manyLabels == null ? scan.severalLabels : builder.manyLabels;
        featureCount = scan.featureCount;
        classCounts = scan.counts;
        filter = scan.filter;
        unknownLabels = scan.unknownLabels;
        unknownFeatures = scan.unknownFeatures;
    }

    /**
     * Returns a builder of the data of a file.
     *
     * @param file the file; of {@link Format#XC_NEW} that of the features
     * @return the builder
     */
    public static Builder builder(Path file) {
        return new Builder(file);
    }

    /**
     * Returns the classes.
     *
     * @return those that {@link Builder#optClasses} was given; else those that a header counts, or
     *     those of the labels in the file: ascending if all are whole numbers, otherwise in the
     *     order in which they appear
     */
    public ClassNames getClasses() {
        return classes;
    }

    /**
     * Returns the number of rows.
     *
     * @return the rows, without empty lines and those that were skipped
     */
    public long size() {
        return index.getRows();
    }

    /**
     * Returns the format of the file.
     *
     * @return the format, as set or as found
     */
    public Format getFormat() {
        return source.format;
    }

    /**
     * Returns what the features of a row are.
     *
     * @return texts, sparse features or dense vectors
     */
    public Features getFeatures() {
        return source.format.getFeatures();
    }

    /**
     * Returns the number of features.
     *
     * @return that of {@link Builder#optFeatureCount} or of the header; else of sparse features the
     *     highest and one; of dense vectors their length; of texts 0
     */
    public int getFeatureCount() {
        return featureCount;
    }

    /**
     * Returns whether a row has many labels.
     *
     * @return as set; otherwise whether the number of labels of some row is not 1
     */
    public boolean hasManyLabels() {
        return manyLabels;
    }

    /**
     * Returns how many rows have each class.
     *
     * @return the numbers of rows, by class
     */
    public long[] getClassCounts() {
        return classCounts.clone();
    }

    /**
     * Returns how many labels have no class.
     *
     * @return the number of labels, over all rows
     */
    public long getUnknownLabels() {
        return unknownLabels;
    }

    /**
     * Returns how many features were left out, since they are beyond those of {@link
     * Builder#optFeatureCount}.
     *
     * @return the number of features, over all rows
     */
    public long getUnknownFeatures() {
        return unknownFeatures;
    }

    /**
     * Returns the classes that do not count for a row, according to {@link Builder#optFilterFile}:
     * neither are they labels of the row, nor are they wrong.
     *
     * @param row the number of the row, from 0
     * @return the classes, ascending
     */
    public int[] getFilteredClasses(long row) {
        int from = Arrays.binarySearch(filter, ParsedRow.pair(row, 0));
        from = from < 0 ? -1 - from : from;
        int to = from;
        while (to < filter.length && filter[to] < ParsedRow.pair(row + 1, 0)) {
            to++;
        }
        return Arrays.stream(filter, from, to)
                .mapToInt(pair -> (int) (pair & Integer.MAX_VALUE))
                .toArray();
    }

    /**
     * Returns how many lines were skipped, since they cannot be read.
     *
     * @return the number of lines, at most that of {@link Builder#optSkipBadLines}
     */
    public int getSkippedLines() {
        return index.getBad();
    }

    /**
     * Creates a dataset of all rows. It reads the file as it goes on, with a thread that prepares
     * the next batch, and holds about 200 MB of it in memory. A pass has every row once; the last
     * batch may be smaller. The order of a pass depends on the seed and the number of the pass
     * alone: blocks of 256 KB in a random order, of which those of 64 MB are shuffled row by row.
     * The blocks of a packed file keep their order.
     *
     * <p>Batches throw {@link IllegalArgumentException} if the file has changed.
     *
     * @param batchSize the number of rows of a batch
     * @param shuffle whether to shuffle; otherwise the order is that of the file
     * @param seed the seed of the order
     * @return the dataset
     * @throws IllegalArgumentException if the batch size is not positive
     */
    public ResumableDataset newDataset(int batchSize, boolean shuffle, long seed) {
        return new ClassDataset(this, batchSize, shuffle, seed);
    }

    /**
     * Returns all rows in the order of the file. Close the stream, which closes the file.
     *
     * @return the rows
     * @throws IOException if the file cannot be read
     */
    public Stream<Row> stream() throws IOException {
        RowReader reader = new RowReader(source, newRow());
        Iterator<Row> rows =
                new Iterator<>() {
                    private long number;

                    @Override
                    public boolean hasNext() {
                        return number < size();
                    }

                    @Override
                    public Row next() {
                        return read(reader, number++);
                    }
                };
        return StreamSupport.stream(
                        Spliterators.spliterator(rows, size(), Spliterator.ORDERED), false)
                .onClose(() -> close(reader));
    }

    /** Returns a row that rows are read into. */
    ParsedRow newRow() {
        return new ParsedRow(classes, filter, getFeatures() == Features.SPARSE ? featureCount : 0);
    }

    private Row read(RowReader reader, long number) {
        try {
            do {
                if (!reader.next()) {
                    throw source.files.get(0).changed("it has fewer rows");
                }
            } while (index.isBad(reader.cursors[0].offset()));
            reader.parse(false);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (BadRow e) {
            throw source.files.get(0).changed(String.valueOf(e.getMessage()));
        }
        ParsedRow row = reader.row;
        row.resolve(number, false);
        boolean sparse = getFeatures() == Features.SPARSE;
        boolean text = getFeatures() == Features.TEXT;
        return new Row(
                number,
                text ? row.getText() : null,
                sparse ? Arrays.copyOf(row.ids, row.count) : null,
                text ? null : Arrays.copyOf(row.values, row.count),
                Arrays.copyOf(row.classes, row.classCount));
    }

    private static void close(RowReader reader) {
        try {
            reader.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Reads the data of a file. */
    public static final class Builder {

        final Path file;
        @Nullable Format format;
        @Nullable Path labelFile;
        @Nullable Path filterFile;
        String textField = "text";
        @Nullable String labelField = "label";
        boolean fields;
        int separator; // 0 for none
        @Nullable Boolean manyLabels;
        int skipBadLines;
        @Nullable ClassNames classes;
        Function<? super String, int[]> textFeatures = new TextFeatures(1 << 19, 2, 5, 2);
        int featureCount;
        int blockBytes = 1 << 18;

        Builder(Path file) {
            this.file = file;
        }

        /**
         * Sets the format. By default, the file's name and first line tell it.
         *
         * @param format the format
         * @return this builder
         */
        public Builder optFormat(Format format) {
            this.format = format;
            return this;
        }

        /**
         * Sets a file of labels: of {@link Format#XC_NEW}, by default the {@code _X_Y} beside a
         * {@code _X_Xf}, or of {@link Format#NPY}.
         *
         * @param file the file, with as many rows as the other
         * @return this builder
         */
        public Builder optLabelFile(Path file) {
            labelFile = file;
            return this;
        }

        /**
         * Sets a file of pairs that do not count: a row and a class a line, from 0. Rows do not
         * have these labels.
         *
         * @param file the file
         * @return this builder
         */
        public Builder optFilterFile(Path file) {
            filterFile = file;
            return this;
        }

        /**
         * Sets the names of fields: of {@link Format#CSV} and {@link Format#TSV} those of their
         * first line. By default, {@code text} and {@code label}; of CSV and TSV without such a
         * first line, the first of two fields is the label.
         *
         * @param text the field of the text
         * @param label the field of the labels, or {@code null} if the file has none
         * @return this builder
         */
        public Builder optFields(String text, @Nullable String label) {
            fields = true;
            textField = text;
            labelField = label;
            return this;
        }

        /**
         * Sets what separates the labels of a field of CSV or TSV, or of a line of a file of
         * labels. By default, the whole field is one label.
         *
         * @param separator the separator
         * @return this builder
         */
        public Builder optLabelSeparator(char separator) {
            this.separator = separator;
            return this;
        }

        /**
         * Sets whether a row has many labels, or one. By default, many if a row has none or
         * several.
         *
         * @param many whether it has
         * @return this builder
         */
        public Builder optManyLabels(boolean many) {
            manyLabels = many;
            return this;
        }

        /**
         * Sets how many lines may be left out since they cannot be read. The default is 0.
         *
         * @param count the number of lines
         * @return this builder
         */
        public Builder optSkipBadLines(int count) {
            skipBadLines = count;
            return this;
        }

        /**
         * Sets the classes, such as those of the training data. Labels that have none are counted
         * and left out.
         *
         * @param classes the classes
         * @return this builder
         */
        public Builder optClasses(ClassNames classes) {
            this.classes = classes;
            return this;
        }

        /**
         * Sets the number of features, such as that of the training data. Sparse features beyond
         * are counted and left out.
         *
         * @param count the number
         * @return this builder
         */
        public Builder optFeatureCount(int count) {
            featureCount = count;
            return this;
        }

        /**
         * Sets how a text becomes rows of a table, such as {@code TextFeatures::ids}, or the tokens
         * of a tokenizer. Called by one thread at a time for each iterator over batches.
         *
         * @param features returns the rows of a text, each at least 1
         * @return this builder
         */
        public Builder optTextFeatures(Function<? super String, int[]> features) {
            textFeatures = features;
            return this;
        }

        /** Sets the size of the blocks, for tests. */
        Builder blockBytes(int bytes) {
            blockBytes = bytes;
            return this;
        }

        /**
         * Reads the file once.
         *
         * @return the data
         * @throws IOException if a file cannot be read
         * @throws IllegalArgumentException if the format is not known, the file is empty, a header
         *     does not agree with the rows, a line cannot be read (with file, line, column and what
         *     was expected), no row has a label and no classes were set, or the file changes
         */
        public ClassData build() throws IOException {
            return new ClassData(this, DataSource.open(this));
        }
    }
}

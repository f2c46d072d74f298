package io.djltp.classes;

import io.djltp.classes.ClassData.Builder;
import io.djltp.classes.ClassData.Format;
import io.djltp.classes.RowFile.BadRow;
import io.djltp.internal.Errors;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Objects;

/** The first pass over the rows, which finds what there is, and what is wrong. */
final class Scan {

    private static final Logger LOGGER = LoggerFactory.getLogger(ClassData.class);
    private static final long OFTEN = 3; // rows that a class has, for one alone to be odd

    final RowIndex index;
    final ClassNames classes;
    final long[] counts;
    final int featureCount;
    boolean severalLabels;
    long unknownLabels;
    long unknownFeatures;
    long[] filter = {};

    Scan(Builder builder, DataSource source) throws IOException {
        index = new RowIndex(source.files.size());
        boolean add = builder.classes == null;
        ClassNames names = builder.classes == null ? new ClassNames() : builder.classes;
        for (int i = 0; add && i < source.labels; i++) {
            byte[] name = Integer.toString(i).getBytes(StandardCharsets.US_ASCII);
            names.add(name, 0, name.length);
        }
        if (builder.filterFile != null) {
            filter = readFilter(builder, source, names);
        }
        ParsedRow row = new ParsedRow(names, filter, builder.featureCount);
        long[] found = new long[Math.max(16, names.size())];
        int highest = -1;
        int first = -1; // class, of the first row
        try (RowReader reader = new RowReader(source, row)) {
            long blockEnd = 0;
            while (reader.next()) {
                long offset = reader.cursors[0].offset();
                if (offset >= blockEnd) {
                    index.addBlock(reader.cursors);
                    blockEnd = offset + builder.blockBytes;
                }
                try {
                    reader.parse(true);
                    if (Boolean.FALSE.equals(builder.manyLabels) && row.labelCount != 1) {
                        throw reader.bad("one label, not " + row.labelCount);
                    }
                } catch (BadRow e) {
                    int before = index.getBad();
                    boolean several = reader.cursors[0].lines() > 1; // maybe a quote is open
                    Errors.check(
                            before < builder.skipBadLines && !several,
                            "%s%s%s",
                            e.getMessage(),
                            guessed(builder, source),
                            before > 0 ? "; " + before + " lines before it are bad, too" : "");
                    index.addBad(offset);
                    continue;
                }
                row.resolve(index.getRows(), add);
                if (index.getRows() == 0 && row.classCount == 1) {
                    first = row.classes[0];
                }
                index.addRow();
                if (names.size() > found.length) {
                    found = Arrays.copyOf(found, 2 * names.size());
                }
                for (int i = 0; i < row.classCount; i++) {
                    found[row.classes[i]]++;
                }
                for (int i = 0; source.features < 0 && i < row.count; i++) {
                    highest = Math.max(highest, row.ids[i]);
                }
                unknownFeatures += row.unknownFeatures;
                unknownLabels += row.unknownLabels;
                severalLabels |= row.labelCount != 1;
            }
        }
        for (RowFile file : source.files) {
            file.checkUnchanged();
        }
        long lines = index.getRows() + index.getBad();
        Errors.check(
                source.expectedRows < 0 || source.expectedRows == lines,
                "%s, line 1: the header says %s rows, and the file has %s%s",
                builder.file,
                source.expectedRows,
                lines,
                guessed(builder, source));
        Errors.check(index.getRows() > 0, "%s has no rows", builder.file);
        Errors.check(names.size() > 0, "No row of %s has a label", builder.file);
        boolean table = source.format == Format.TSV || source.format == Format.CSV;
        boolean alone = add && first >= 0 && found[first] == 1;
        if (table && !builder.fields && alone && index.getRows() > OFTEN * names.size()) {
            LOGGER.warn(
                    "{}, line 1 is taken for a row, though no other has the label \"{}\". If it"
                            + " has the names of the fields, set them: {}",
                    builder.file,
                    names.get(first),
                    "optFields(text, label), or --fields TEXT,LABEL");
        }
        int[] moved = new int[names.size()];
        Arrays.setAll(moved, i -> i);
        classes = add ? names.inOrder(moved) : names;
        counts = new long[names.size()];
        for (int i = 0; i < counts.length; i++) {
            counts[moved[i]] = found[i];
        }
        int own = source.features >= 0 ? source.features : highest + 1;
        featureCount = builder.featureCount > 0 ? builder.featureCount : own;
    }

    /** Says what an error may be due to. */
    private static String guessed(Builder builder, DataSource source) {
        return builder.format != null
                ? ""
                : " (read as " + source.format + ": set the format if it is another)";
    }

    /** Reads pairs of rows and classes that do not count. */
    private static long[] readFilter(Builder builder, DataSource source, ClassNames names)
            throws IOException {
        Path file = Objects.requireNonNull(builder.filterFile);
        Errors.check(
                source.labels >= 0 && builder.skipBadLines == 0,
                "%s needs rows and classes that have numbers: those of XC_OLD or XC_NEW, without"
                        + " optSkipBadLines",
                file);
        long[] pairs = new long[1024];
        int count = 0;
        RowFile rows = new RowFile(file, 0, 1, RowFile.Split.LINES);
        try (RowFile.Cursor at = rows.open()) {
            while (at.next()) {
                String line = RowParser.ascii(at.bytes, at.from, at.to).trim();
                if (line.isEmpty()) {
                    continue;
                }
                if (!line.matches("\\d{1,9}\\s+\\d{1,9}")) {
                    throw Errors.argument("%s", at.describe(new BadRow(at.from, "row label")));
                }
                String[] pair = line.split("\\s+");
                int number = names.indexOf(pair[1]);
                if (number >= 0) {
                    if (count == pairs.length) {
                        pairs = Arrays.copyOf(pairs, 2 * count);
                    }
                    pairs[count++] = ParsedRow.pair(Long.parseLong(pair[0]), number);
                }
            }
        }
        long[] sorted = Arrays.copyOf(pairs, count);
        Arrays.sort(sorted);
        return sorted;
    }
}

package io.djltp.classes;

import io.djltp.classes.ClassData.Builder;
import io.djltp.classes.RowFile.BadRow;
import io.djltp.internal.Errors;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The first pass over the rows, which finds what there is, and what is wrong. */
final class Scan {

    final RowIndex index;
    final ClassNames classes;
    final long[] counts;
    final int featureCount;
    boolean severalLabels;
    long unknownLabels;
    long unknownFeatures;

    Scan(Builder builder, DataSource source) throws IOException {
        index = new RowIndex(source.files.size());
        boolean add = builder.classes == null;
        ClassNames names = builder.classes == null ? new ClassNames() : builder.classes;
        for (int i = 0; add && i < source.labels; i++) {
            byte[] name = Integer.toString(i).getBytes(StandardCharsets.US_ASCII);
            names.add(name, 0, name.length);
        }
        long[] found = new long[Math.max(16, names.size())];
        int highest = -1;
        try (RowReader reader = new RowReader(source)) {
            ParsedRow row = reader.row;
            long blockEnd = 0;
            while (reader.next()) {
                long offset = reader.cursors[0].offset();
                if (offset >= blockEnd) {
                    index.addBlock(reader.cursors);
                    blockEnd = offset + builder.blockBytes;
                }
                try {
                    reader.parse();
                    if (Boolean.FALSE.equals(builder.manyLabels) && row.labelCount != 1) {
                        throw reader.bad("one label, not " + row.labelCount);
                    }
                } catch (BadRow e) {
                    int before = index.getBad();
                    Errors.check(
                            before < builder.skipBadLines,
                            "%s%s",
                            e.getMessage(),
                            before > 0 ? "; " + before + " lines before it are bad, too" : "");
                    index.addBad(offset);
                    continue;
                }
                index.addRow();
                row.findClasses(names, add);
                if (names.size() > found.length) {
                    found = Arrays.copyOf(found, 2 * names.size());
                }
                for (int i = 0; i < row.classCount; i++) {
                    found[row.classes[i]]++;
                }
                for (int i = 0; i < row.count; i++) {
                    highest = Math.max(highest, row.ids[i]);
                }
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
                "%s, line 1: the header says %s rows, and the file has %s",
                builder.file,
                source.expectedRows,
                lines);
        Errors.check(index.getRows() > 0, "%s has no rows", builder.file);
        Errors.check(names.size() > 0, "No row of %s has a label", builder.file);
        int[] moved = new int[names.size()];
        Arrays.setAll(moved, i -> i);
        classes = add ? names.inOrder(moved) : names;
        counts = new long[names.size()];
        for (int i = 0; i < counts.length; i++) {
            counts[moved[i]] = found[i];
        }
        featureCount = source.features >= 0 ? source.features : highest + 1;
    }
}

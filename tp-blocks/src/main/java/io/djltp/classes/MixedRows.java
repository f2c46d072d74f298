package io.djltp.classes;

import io.djltp.internal.Errors;
import io.djltp.internal.files.Permutation;

import org.jspecify.annotations.Nullable;

import java.io.IOException;

/** Some blocks of rows in memory, and an order of their rows. */
final class MixedRows {

    private final DataSource source;
    private final RowIndex index;
    private final byte[][] bytes; // of each file
    private final int[][] from; // of each file the rows
    private final int[][] to;
    private final long[] numbers; // of the rows
    private final @Nullable Permutation order;

    /**
     * Reads blocks.
     *
     * @param source the files
     * @param index where the blocks are
     * @param blocks the numbers of the blocks
     * @param in reads each file
     * @param key which order, or {@code null} for that of the blocks
     */
    MixedRows(
            DataSource source, RowIndex index, int[] blocks, RowFile.Bytes[] in, @Nullable Long key)
            throws IOException {
        this.source = source;
        this.index = index;
        int files = source.files.size();
        int rows = 0;
        for (int block : blocks) {
            rows += index.rowsOf(block);
        }
        order = key == null ? null : new Permutation(rows, key);
        numbers = new long[rows];
        bytes = new byte[files][];
        from = new int[files][rows];
        to = new int[files][rows];
        int[][] starts = new int[files][blocks.length + 1];
        for (int file = 0; file < files; file++) {
            read(file, blocks, in[file], starts[file]);
        }
        RowParser parser = source.parsers.get(0).get();
        int row = 0;
        for (int i = 0; i < blocks.length; i++) {
            row = split(parser, blocks[i], i, starts, row);
        }
    }

    private void read(int number, int[] blocks, RowFile.Bytes in, int[] starts) throws IOException {
        RowFile file = source.files.get(number);
        long size = 0;
        for (int i = 0; i < blocks.length; i++) {
            size += index.bytesOf(number, blocks[i], file.end());
            starts[i + 1] = (int) Math.min(Integer.MAX_VALUE, size);
        }
        Errors.check(
                size <= Integer.MAX_VALUE - 8,
                "%s blocks of rows of %s have more than 2 GiB: %s",
                blocks.length,
                file.path,
                size);
        bytes[number] = new byte[(int) size];
        file.checkUnchanged();
        boolean goesOn = false;
        try {
            for (int i = 0; i < blocks.length; i++) {
                long offset = index.offset(number, blocks[i]);
                int count = starts[i + 1] - starts[i];
                int got = in.read(offset, bytes[number], starts[i], count);
                if (got < count) {
                    throw file.changed("it ends at byte " + (offset + got));
                }
            }
            // a packed file is read on from where it is
            goesOn = file.packed && blocks[blocks.length - 1] < index.getBlocks() - 1;
        } finally {
            if (!goesOn) {
                in.close();
            }
        }
        file.checkUnchanged();
    }

    /** Finds the rows of a block. */
    private int split(RowParser parser, int block, int place, int[][] starts, int firstRow) {
        int row = firstRow;
        int[] at = new int[bytes.length];
        for (int file = 0; file < at.length; file++) {
            at[file] = starts[file][place];
        }
        int end = firstRow + index.rowsOf(block);
        while (at[0] < starts[0][place + 1]) {
            long offset = index.offset(0, block) + at[0] - starts[0][place];
            boolean counts = row < end;
            for (int file = 0; file < at.length; file++) {
                RowFile rows = source.files.get(file);
                int limit = starts[file][place + 1];
                int begin = at[file];
                int stop = rows.split.end(bytes[file], begin, limit);
                at[file] = stop < 0 ? limit : stop;
                int content = rows.contentEnd(bytes[file], begin, at[file]);
                if (file == 0) {
                    counts = !parser.isBlank(bytes[0], begin, content) && !index.isBad(offset);
                }
                if (counts && row < end) {
                    from[file][row] = begin;
                    to[file][row] = content;
                }
            }
            if (counts && row < end) {
                numbers[row] = index.firstRow(block) + row - firstRow;
            }
            row += counts ? 1 : 0;
        }
        if (row != end) {
            throw source.files.get(0).changed("rows of it are others");
        }
        return row;
    }

    int size() {
        return numbers.length;
    }

    /** Parses the row at a place of the order and returns its number. */
    long parse(int place, RowParser[] parsers, ParsedRow target) {
        int row = order == null ? place : order.get(place);
        target.clear();
        for (int file = 0; file < bytes.length; file++) {
            try {
                parsers[file].parse(bytes[file], from[file][row], to[file][row], target);
            } catch (RowFile.BadRow e) {
                throw source.files.get(file).changed("row " + numbers[row] + " is another");
            }
        }
        return numbers[row];
    }
}

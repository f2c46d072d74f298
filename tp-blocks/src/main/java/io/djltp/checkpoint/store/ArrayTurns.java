package io.djltp.checkpoint.store;

import io.djltp.safetensors.SafetensorsWriter;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Writes arrays that lie one after another in a file in turns, some of the rows of each: who
 * changes the first rows of a weight together with those of its momentum does not wait until all of
 * the weight was read.
 *
 * <p>Each array has a stretch of the file of its own, of whole {@linkplain BlockChecksums#BLOCK
 * blocks}, so that their checksums are added up apart and direct writes are of whole pages. The
 * block in which the next array begins belongs to the stretch before it; the beginning of that
 * array, less than a block, is copied, since it is read first and written last.
 */
final class ArrayTurns {

    /** The bytes of a turn: some direct writes, so that a file is not in too many pieces. */
    static final int TURN = 4 << 20;

    private final SafetensorsWriter out;
    private final ChecksummedChannel file;
    private final List<Stretch> stretches = new ArrayList<>();

    /** Where an array and the beginning of the next one go. */
    private static final class Stretch {

        private final ArrayMemory array;
        private final ByteBuffer head; // of the next array
        private final long begin;
        private final long end;
        private long place;

        Stretch(ArrayMemory array, ByteBuffer head, long begin, long end) {
            this.array = array;
            this.head = head;
            this.begin = begin;
            this.end = end;
            place = begin;
        }

        double done() {
            return (place - begin) / (double) (end - begin);
        }
    }

    private ArrayTurns(SafetensorsWriter out, ChecksummedChannel file) {
        this.out = out;
        this.file = file;
    }

    /**
     * Writes arrays.
     *
     * @param arrays the next ones of the file, of a block at least, of which nothing was read
     * @param out where they go
     * @param file the channel of that writer
     */
    static void write(List<ArrayMemory> arrays, SafetensorsWriter out, ChecksummedChannel file)
            throws IOException {
        new ArrayTurns(out, file).write(arrays);
    }

    private void write(List<ArrayMemory> arrays) throws IOException {
        long end = file.position();
        long begin = wholeBlocks(end);
        arrays.get(0).write(begin - end, out);
        end += arrays.get(0).bytes();
        for (int i = 1; i < arrays.size(); i++) {
            ByteBuffer head = arrays.get(i).copy((int) (wholeBlocks(end) - end));
            stretches.add(new Stretch(arrays.get(i - 1), head, begin, wholeBlocks(end)));
            begin = wholeBlocks(end);
            end += arrays.get(i).bytes();
        }
        stretches.add(
                new Stretch(arrays.get(arrays.size() - 1), ByteBuffer.allocate(0), begin, end));
        for (Stretch next = next(); next != null; next = next()) {
            turn(next);
        }
        if (end == wholeBlocks(end)) {
            file.moveTo(end); // the last turn may have been of another stretch
        }
    }

    private static long wholeBlocks(long position) {
        return (position + BlockChecksums.BLOCK - 1) / BlockChecksums.BLOCK * BlockChecksums.BLOCK;
    }

    /**
     * Returns the stretch of which the least is done. The end of the last one comes after all
     * others: what follows in the file goes on in its block.
     */
    private Stretch next() {
        Stretch last = stretches.get(stretches.size() - 1);
        Stretch least = null;
        for (Stretch each : stretches) {
            boolean waits = each == last && each.end - each.place <= TURN && least != null;
            if (each.place < each.end && !waits && (least == null || each.done() < least.done())) {
                least = each;
            }
        }
        return least;
    }

    private void turn(Stretch stretch) throws IOException {
        file.moveTo(stretch.place);
        long count = Math.min(TURN, stretch.end - stretch.place);
        stretch.array.write(Math.min(count, stretch.array.left()), out);
        stretch.place += count;
        if (stretch.place == stretch.end) {
            out.write(stretch.head);
        }
    }
}

package io.djltp.classes;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.zip.GZIPInputStream;
import java.util.zip.ZipException;

/**
 * A file, or a part of one, whose bytes are rows one after another. Text may be packed by gzip: all
 * places are then those of the unpacked bytes.
 */
final class RowFile {

    private static final int BUFFER = 1 << 20;
    private static final int LONGEST = 1 << 28; // of a row
    private static final int INCOMPLETE = -1;

    final Path path;
    final long begin; // of the rows
    final boolean packed;
    final Split split;
    private final long firstLine; // the number of the first row's line, from 1
    private final long size;
    private volatile long end; // of the rows; of a packed file known when all was read
    private final FileTime modified;

    /** Where rows end. */
    interface Split {

        /** Lines of text, of which each is a row. */
        Split LINES =
                (bytes, from, limit) -> {
                    for (int i = from; i < limit; i++) {
                        if (bytes[i] == '\n') {
                            return i + 1;
                        }
                    }
                    return INCOMPLETE;
                };

        /** Returns the end of the row that begins at a place, or -1 if it is not there. */
        int end(byte[] bytes, int from, int limit);

        /** Returns lines of fields, of which those in quotes may have ends of lines. */
        static Split quoted(char delimiter) {
            return (bytes, from, limit) -> {
                boolean quoted = false;
                boolean first = true; // of a field
                for (int i = from; i < limit; i++) {
                    byte next = bytes[i];
                    if (next == '"' && (quoted || first)) {
                        quoted = !quoted;
                        first = !quoted; // a second quote goes on with the field
                    } else if (!quoted && next == '\n') {
                        return i + 1;
                    } else {
                        first = !quoted && next == delimiter;
                    }
                }
                return INCOMPLETE;
            };
        }

        /** Returns rows of so many bytes. */
        static Split every(int bytes) {
            return (all, from, limit) -> limit - from < bytes ? INCOMPLETE : from + bytes;
        }
    }

    /** Creates lines of text from a place to the end of the file. */
    RowFile(Path path, long begin, long firstLine, Split split) throws IOException {
        this(path, begin, Long.MAX_VALUE, firstLine, split);
    }

    /** Creates rows; the number of the first line is 0 where they are no text. */
    RowFile(Path path, long begin, long end, long firstLine, Split split) throws IOException {
        this.path = path;
        this.begin = begin;
        this.firstLine = firstLine;
        this.split = split;
        packed = isText() && isPacked(path);
        size = Files.size(path);
        this.end = packed ? end : Math.min(end, size);
        modified = Files.getLastModifiedTime(path);
    }

    private static boolean isPacked(Path path) throws IOException {
        try (InputStream in = Files.newInputStream(path)) {
            return in.read() == 0x1f && in.read() == 0x8b;
        }
    }

    long end() {
        return end;
    }

    /** Returns whether the rows are lines of text. */
    boolean isText() {
        return firstLine > 0;
    }

    /** Throws IllegalArgumentException if the file is not what it was when this was created. */
    void checkUnchanged() throws IOException {
        long now = Files.size(path);
        if (now != size || !Files.getLastModifiedTime(path).equals(modified)) {
            throw changed("it had " + size + " bytes and has " + now);
        }
    }

    IllegalArgumentException changed(String how) {
        return Errors.argument(
                "%s has changed while it was in use: %s. Begin again when it is complete",
                path, how);
    }

    Bytes bytes() {
        return new Bytes();
    }

    /** Returns a cursor before the first row, which reads the file as it goes on. */
    Cursor open() {
        return new Cursor();
    }

    /** Reads bytes at any place, of a packed file best in ascending order. */
    final class Bytes implements Closeable {

        private @Nullable FileChannel channel;
        private @Nullable InputStream unpacked;
        private long at; // in what is unpacked

        /** Reads so many bytes, or those that are left, and returns how many. */
        int read(long position, byte[] target, int from, int count) throws IOException {
            return packed
                    ? unpack(position, target, from, count)
                    : copy(position, target, from, count);
        }

        private int copy(long position, byte[] target, int from, int count) throws IOException {
            FileChannel in = channel == null ? FileChannel.open(path) : channel;
            channel = in;
            int done = 0;
            while (done < count) { // in pieces, for which the JDK keeps memory outside of the heap
                int piece = Math.min(BUFFER, count - done);
                int got = in.read(ByteBuffer.wrap(target, from + done, piece), position + done);
                if (got < 0) {
                    return done;
                }
                done += got;
            }
            return done;
        }

        private int unpack(long position, byte[] target, int from, int count) throws IOException {
            try {
                InputStream in = unpacked;
                if (in == null || position < at) {
                    close();
                    in = new GZIPInputStream(Files.newInputStream(path), 1 << 16);
                    unpacked = in;
                    at = 0;
                }
                in.skipNBytes(position - at);
                at = position;
                int got = in.readNBytes(target, from, count);
                at += got;
                return got;
            } catch (EOFException | ZipException e) {
                throw Errors.argument("%s cannot be unpacked: %s. Is it complete?", path, e);
            }
        }

        /** Closes the file, which the next read opens again. */
        @Override
        public void close() throws IOException {
            Closeable open = packed ? unpacked : channel;
            channel = null;
            unpacked = null;
            if (open != null) {
                open.close();
            }
        }
    }

    /** The rows from the first to the last, each in an array of bytes. */
    final class Cursor implements Closeable {

        byte[] bytes = new byte[BUFFER];
        int from; // of the row
        int to; // the end of what it says, without the end of the line
        long line;

        private final Bytes file = new Bytes();
        private long position = begin; // in the file, behind what was read
        private int next;
        private int limit;
        private long nextLine = isText() ? firstLine : 1;

        /** Goes to the next row, if there is one. */
        boolean next() throws IOException {
            int stop = split.end(bytes, next, limit);
            while (stop < 0 && position < end) {
                fill();
                stop = split.end(bytes, next, limit);
            }
            if (next == limit) {
                return false;
            }
            from = next;
            next = stop < 0 ? limit : stop;
            to = contentEnd(bytes, from, next);
            line = nextLine;
            nextLine += isText() && split != Split.LINES ? lines() : 1;
            return true;
        }

        /** Returns how many lines the row has. */
        int lines() {
            int lines = 0;
            for (int i = from; i < next; i++) {
                lines += bytes[i] == '\n' ? 1 : 0;
            }
            return lines;
        }

        private void fill() throws IOException {
            int kept = limit - next;
            Errors.check(
                    kept < LONGEST,
                    "%s, line %s: the row has more than %s bytes. Check the ends of the lines%s",
                    path,
                    nextLine,
                    LONGEST,
                    split == Split.LINES ? "" : ", and that each quote is closed");
            byte[] target = kept > bytes.length / 2 ? new byte[2 * bytes.length] : bytes;
            System.arraycopy(bytes, next, target, 0, kept);
            bytes = target;
            next = 0;
            int count = (int) Math.min(bytes.length - kept, end - position);
            int got = file.read(position, bytes, kept, count);
            limit = kept + got;
            position += got;
            if (got < count) {
                if (end != Long.MAX_VALUE) {
                    throw changed("it ends at byte " + position);
                }
                end = position;
            }
        }

        /** Returns where the row begins in the file. */
        long offset() {
            return position - limit + from;
        }

        /** Returns where a row could not be read, and why. */
        String describe(BadRow bad) {
            if (!isText()) {
                return "%s, row %d: expected %s".formatted(path, line, bad.getMessage());
            }
            int at = Math.min(bad.at, to);
            int last = from; // of the lines of the row
            long row = line;
            int column = 1;
            for (int i = from; i < at; i++) {
                boolean end = bytes[i] == '\n';
                row += end ? 1 : 0;
                column = end ? 1 : column + ((bytes[i] & 0xc0) == 0x80 ? 0 : 1);
                last = end ? i + 1 : last;
            }
            return "%s, line %d, column %d: expected %s, found %s"
                    .formatted(path, row, column, bad.getMessage(), found(at));
        }

        private String found(int at) {
            int stop = at;
            while (stop < to && stop - at < 20 && bytes[stop] != '\n' && bytes[stop] != '\t') {
                stop++;
            }
            while (stop < to && (bytes[stop] & 0xc0) == 0x80) {
                stop++;
            }
            String text = new String(bytes, at, stop - at, StandardCharsets.UTF_8);
            return text.isEmpty() ? at == to ? "the end of the line" : "a tab" : '"' + text + '"';
        }

        /** {@inheritDoc} */
        @Override
        public void close() throws IOException {
            file.close();
        }
    }

    /** Returns the end of a row without its end of line. */
    int contentEnd(byte[] bytes, int from, int next) {
        int to = next;
        if (isText() && to > from && bytes[to - 1] == '\n') {
            to--;
            if (to > from && bytes[to - 1] == '\r') {
                to--;
            }
        }
        return to;
    }

    /** What is wrong with a row. */
    static final class BadRow extends RuntimeException {

        private static final long serialVersionUID = 1L;

        final int at; // in the bytes

        BadRow(int at, String expected) {
            super(expected, null, false, false);
            this.at = at;
        }
    }
}

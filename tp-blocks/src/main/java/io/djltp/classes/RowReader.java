package io.djltp.classes;

import io.djltp.classes.RowFile.BadRow;
import io.djltp.classes.RowFile.Cursor;
import io.djltp.internal.Errors;

import java.io.Closeable;
import java.io.IOException;

/** Reads the rows of all files of a source together, one after another. */
final class RowReader implements Closeable {

    final Cursor[] cursors;
    final ParsedRow row;

    private final DataSource source;
    private final RowParser[] parsers;

    RowReader(DataSource source, ParsedRow row) {
        this.source = source;
        this.row = row;
        parsers = source.newParsers();
        cursors = source.files.stream().map(RowFile::open).toArray(Cursor[]::new);
    }

    /** Goes to the next row that is not blank, if there is one. */
    boolean next() throws IOException {
        Cursor first = cursors[0];
        boolean more;
        do {
            more = first.next();
            for (int i = 1; i < cursors.length; i++) {
                Errors.check(
                        cursors[i].next() == more,
                        "%s has %s rows than %s: both must have as many",
                        source.files.get(0).path,
                        more ? "more" : "fewer",
                        source.files.get(i).path);
            }
        } while (more && parsers[0].isBlank(first.bytes, first.from, first.to));
        return more;
    }

    /**
     * Parses the row.
     *
     * @param check whether to check that it is UTF-8
     * @throws BadRow if it cannot be read; its message says where and why
     */
    void parse(boolean check) {
        row.clear();
        for (int i = 0; i < cursors.length; i++) {
            Cursor at = cursors[i];
            try {
                if (check && source.files.get(i).isText()) {
                    RowParser.checkUtf8(at.bytes, at.from, at.to);
                }
                parsers[i].parse(at.bytes, at.from, at.to, row);
            } catch (BadRow e) {
                throw new BadRow(e.at, at.describe(e));
            }
        }
    }

    /** Returns the error of the row that was parsed. */
    BadRow bad(String expected) {
        Cursor at = cursors[cursors.length - 1];
        return new BadRow(at.from, at.describe(new BadRow(at.from, expected)));
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        for (Cursor cursor : cursors) {
            cursor.close();
        }
    }
}

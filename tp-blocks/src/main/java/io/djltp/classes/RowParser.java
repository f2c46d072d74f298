package io.djltp.classes;

import io.djltp.classes.RowFile.BadRow;

import java.nio.charset.StandardCharsets;

/** Reads what a row of one of the formats says. */
abstract class RowParser {

    /**
     * Reads a row.
     *
     * @param bytes what has the row
     * @param from where it begins
     * @param to its end, without the end of the line
     * @param row gets what the row says, in addition to what it has
     * @throws BadRow if it cannot be read
     */
    abstract void parse(byte[] bytes, int from, int to, ParsedRow row);

    /** Returns whether a row does not count. */
    boolean isBlank(byte[] bytes, int from, int to) {
        return skipSpaces(bytes, from, to) == to;
    }

    static int skipSpaces(byte[] bytes, int from, int to) {
        int at = from;
        while (at < to && isSpace(bytes[at])) {
            at++;
        }
        return at;
    }

    static boolean isSpace(byte next) {
        return next == ' ' || next == '\t';
    }

    /** Texts whose labels are words that begin with {@code __label__}. */
    static final class FastText extends RowParser {

        static final byte[] PREFIX = "__label__".getBytes(StandardCharsets.US_ASCII);

        private byte[] rest = new byte[256];

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            int at = skipSpaces(bytes, from, to);
            while (isLabel(bytes, at, to)) {
                at = skipSpaces(bytes, label(bytes, at, to, row), to);
            }
            row.setText(bytes, at, to);
            for (int i = at; i < to; i++) {
                if (bytes[i] == '_' && isSpace(bytes[i - 1]) && isLabel(bytes, i, to)) {
                    leaveOut(bytes, at, i, to, row);
                    return;
                }
            }
        }

        private static boolean isLabel(byte[] bytes, int from, int to) {
            if (to - from < PREFIX.length || bytes[from] != '_') {
                return false;
            }
            for (int i = 1; i < PREFIX.length; i++) {
                if (bytes[from + i] != PREFIX[i]) {
                    return false;
                }
            }
            return true;
        }

        /** Reads a label and returns its end. */
        private static int label(byte[] bytes, int from, int to, ParsedRow row) {
            int end = from;
            while (end < to && !isSpace(bytes[end])) {
                end++;
            }
            int name = from + PREFIX.length;
            if (name == end) {
                throw new BadRow(name, "a name behind __label__");
            }
            row.addLabel(bytes, name, end);
            return end;
        }

        /** Copies a text without the labels in it. */
        private void leaveOut(byte[] bytes, int from, int firstLabel, int to, ParsedRow row) {
            if (rest.length < to - from) {
                rest = new byte[2 * (to - from)];
            }
            int size = 0;
            int at = from;
            while (at < to) {
                boolean begins = at == from || isSpace(bytes[at - 1]);
                if (at >= firstLabel && begins && isLabel(bytes, at, to)) {
                    at = skipSpaces(bytes, label(bytes, at, to, row), to);
                } else {
                    rest[size++] = bytes[at++];
                }
            }
            row.setText(rest, 0, size);
        }
    }

    /**
     * Labels that commas separate, then {@code feature:value}: LIBSVM's format, of which Extreme
     * Classification's is a part.
     */
    static final class Sparse extends RowParser {

        private final boolean labelled;
        private final boolean comments;
        private final long labels; // those beyond are wrong
        private final int features;

        Sparse(boolean labelled, boolean comments, long labels, int features) {
            this.labelled = labelled;
            this.comments = comments;
            this.labels = labels;
            this.features = features;
        }

        @Override
        boolean isBlank(byte[] bytes, int from, int to) {
            int at = skipSpaces(bytes, from, to);
            return comments && (at == to || bytes[at] == '#');
        }

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            int at = labelled ? labels(bytes, from, to, row) : from;
            while (true) {
                at = skipSpaces(bytes, at, to);
                if (at == to || comments && bytes[at] == '#') {
                    return;
                }
                int begin = at;
                long id = 0;
                while (at < to && isDigit(bytes[at]) && id <= Integer.MAX_VALUE) {
                    id = 10 * id + bytes[at++] - '0';
                }
                if (at == begin || at == to || bytes[at] != ':') {
                    throw new BadRow(begin, "feature:value");
                }
                if (id >= features) {
                    throw new BadRow(begin, "a feature below " + features);
                }
                at = number(bytes, at + 1, to, (int) id, row);
            }
        }

        /** Reads the labels before the first space, unless that is a feature already. */
        private int labels(byte[] bytes, int from, int to, ParsedRow row) {
            int end = from;
            while (end < to && !isSpace(bytes[end])) {
                if (bytes[end++] == ':') {
                    return from;
                }
            }
            int begin = from;
            for (int at = from; at <= end && from < end; at++) {
                if (at == end || bytes[at] == ',') {
                    checkLabel(bytes, begin, at, labels);
                    row.addLabel(bytes, begin, at);
                    begin = at + 1;
                }
            }
            return end;
        }

        /** Reads the value of a feature and returns its end. */
        private static int number(byte[] bytes, int from, int to, int id, ParsedRow row) {
            int at = from;
            boolean negative = at < to && bytes[at] == '-';
            if (negative || at < to && bytes[at] == '+') {
                at++;
            }
            long digits = 0;
            int places = 0; // behind the point
            int first = at;
            while (at < to && isDigit(bytes[at])) {
                digits = 10 * digits + bytes[at++] - '0';
            }
            int seen = at - first;
            if (at < to && bytes[at] == '.') {
                int point = at++;
                while (at < to && isDigit(bytes[at])) {
                    digits = 10 * digits + bytes[at++] - '0';
                }
                places = at - point - 1;
                seen += places;
            }
            boolean plain = seen > 0 && (at == to || isSpace(bytes[at]));
            if (plain && seen < 19 && places < POWERS.length && digits < 1L << 53) {
                double value = digits / POWERS[places];
                // rounded to double, a number may lie between two floats which it did not
                boolean between = (Double.doubleToRawLongBits(value) & 0x1fffffff) == 0x10000000;
                if (!between && (value > 1e-37 && value < 1e38 || digits == 0)) {
                    row.addFeature(id, (float) (negative ? -value : value));
                    return at;
                }
            }
            while (at < to && !isSpace(bytes[at])) {
                at++;
            }
            row.addFeature(id, anyNumber(bytes, from, at));
            return at;
        }

        private static float anyNumber(byte[] bytes, int from, int to) {
            try {
                float value = Float.parseFloat(ascii(bytes, from, to));
                if (Float.isFinite(value) && isDigitOrPoint(bytes[to - 1])) {
                    return value;
                }
            } catch (NumberFormatException e) {
                // is no number
            }
            throw new BadRow(from, "a finite number");
        }

        private static boolean isDigitOrPoint(byte next) { // not 1f
            return isDigit(next) || next == '.';
        }
    }

    private static final double[] POWERS = new double[23]; // exact

    static {
        POWERS[0] = 1;
        for (int i = 1; i < POWERS.length; i++) {
            POWERS[i] = 10 * POWERS[i - 1];
        }
    }

    static boolean isDigit(byte next) {
        return next >= '0' && next <= '9';
    }

    static String ascii(byte[] bytes, int from, int to) {
        return new String(bytes, from, to - from, StandardCharsets.ISO_8859_1);
    }

    /** Checks the number of a label against a header; without one, it is a name. */
    static void checkLabel(byte[] bytes, int from, int to, long labels) {
        if (from == to) {
            throw new BadRow(from, "a label");
        }
        if (labels == Long.MAX_VALUE) {
            return;
        }
        long number = 0;
        boolean zeros = bytes[from] == '0' && to - from > 1;
        for (int i = from; i < to; i++) {
            if (zeros || !isDigit(bytes[i]) || number >= labels) {
                number = labels;
                break;
            }
            number = 10 * number + bytes[i] - '0';
        }
        if (number >= labels) {
            throw new BadRow(from, "a label below " + labels);
        }
    }
}

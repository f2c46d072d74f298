package io.djltp.classes;

import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;

import io.djltp.classes.RowFile.BadRow;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.StringReader;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

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
                if (id >= features) {
                    throw new BadRow(begin, "a feature below " + features);
                }
                if (at == begin || at == to || bytes[at] != ':') {
                    throw new BadRow(begin, "feature:value");
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

    /** Throws an exception for bytes that are not UTF-8. */
    static void checkUtf8(byte[] bytes, int from, int to) {
        int at = from;
        while (at + Long.BYTES <= to && ((long) LONGS.get(bytes, at) & HIGH_BITS) == 0) {
            at += Long.BYTES;
        }
        while (at < to && bytes[at] >= 0) {
            at++;
        }
        if (at == to) {
            return;
        }
        ByteBuffer in = ByteBuffer.wrap(bytes, at, to - at);
        CharBuffer out = CharBuffer.allocate(1024);
        CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder(); // which reports
        CoderResult result;
        do {
            result = decoder.decode(in, out.clear(), true);
        } while (result.isOverflow());
        if (result.isError()) {
            throw new BadRow(in.position(), "UTF-8");
        }
    }

    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final long HIGH_BITS = 0x8080808080808080L;

    /** Fields that a delimiter separates. */
    static final class Table extends RowParser {

        private final byte delimiter;
        private final boolean quotes;
        private final int fields;
        private final int textField;
        private final int labelField; // or -1
        private final int separator; // of labels, or 0
        private byte[] value = {}; // of the field that was read last
        private int begin;
        private int end;

        Table(char delimiter, int fields, int textField, int labelField, int separator) {
            this.delimiter = (byte) delimiter;
            quotes = delimiter != '\t';
            this.fields = fields;
            this.textField = textField;
            this.labelField = labelField;
            this.separator = separator;
        }

        /** Returns the fields of a row. */
        static List<String> fields(byte[] bytes, int from, int to, char delimiter) {
            Table table = new Table(delimiter, 0, -1, -1, 0);
            List<String> all = new ArrayList<>();
            for (int at = from; at <= to; at++) {
                at = table.field(bytes, at, to);
                all.add(
                        new String(
                                table.value,
                                table.begin,
                                table.end - table.begin,
                                StandardCharsets.UTF_8));
            }
            return all;
        }

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            int field = 0;
            for (int at = from; at <= to; at++) {
                at = field(bytes, at, to);
                if (field == textField) {
                    row.setText(value, begin, end);
                } else if (field == labelField) {
                    addLabels(value, begin, end, separator, row);
                }
                field++;
            }
            if (field != fields) {
                throw new BadRow(to, fields + " fields, not " + field);
            }
        }

        /** Reads a field and returns its end: a delimiter or the end of the row. */
        private int field(byte[] bytes, int from, int to) {
            value = bytes;
            begin = from;
            int at = from;
            if (quotes && at < to && bytes[at] == '"') {
                at = quoted(bytes, from + 1, to);
                if (at < to && bytes[at] != delimiter) {
                    throw new BadRow(at, "a comma or the end of the line behind a quote");
                }
                return at;
            }
            while (at < to && bytes[at] != delimiter) {
                at++;
            }
            end = at;
            return at;
        }

        private int quoted(byte[] bytes, int from, int to) {
            int doubled = 0;
            int at = from;
            while (at < to && (bytes[at] != '"' || at + 1 < to && bytes[at + 1] == '"')) {
                doubled += bytes[at] == '"' ? 1 : 0;
                at += bytes[at] == '"' ? 2 : 1;
            }
            if (at >= to) {
                throw new BadRow(from - 1, "a quote that is closed");
            }
            begin = from;
            end = at;
            if (doubled > 0) {
                value = new byte[at - from - doubled];
                begin = 0;
                end = 0;
                for (int i = from; i < at; i++) {
                    value[end++] = bytes[i];
                    i += bytes[i] == '"' ? 1 : 0;
                }
            }
            return at + 1;
        }
    }

    /** Adds labels that a separator separates, without spaces around them; 0 for one label. */
    static void addLabels(byte[] bytes, int from, int to, int separator, ParsedRow row) {
        int begin = from;
        for (int at = from; at <= to; at++) {
            if (at == to || separator != 0 && bytes[at] == separator) {
                int first = skipSpaces(bytes, begin, at);
                int last = at;
                while (last > first && isSpace(bytes[last - 1])) {
                    last--;
                }
                if (last > first) {
                    row.addLabel(bytes, first, last);
                }
                begin = at + 1;
            }
        }
    }

    /** Labels alone: lines that belong to rows of another file. */
    static final class LabelLines extends RowParser {

        private final int separator;

        LabelLines(int separator) {
            this.separator = separator;
        }

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            addLabels(bytes, from, to, separator, row);
        }
    }

    /** Labels alone, as {@code label:value}, of which those with value 0 do not count. */
    static final class LabelPairs extends RowParser {

        private final int labels;

        LabelPairs(int labels) {
            this.labels = labels;
        }

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            int at = skipSpaces(bytes, from, to);
            while (at < to) {
                int colon = -1;
                int end = at;
                boolean zero = true;
                for (; end < to && !isSpace(bytes[end]); end++) {
                    colon = bytes[end] == ':' ? end : colon;
                    zero &= colon < 0 || bytes[end] < '1' || bytes[end] > '9';
                }
                if (colon < 0 || colon == end - 1) {
                    throw new BadRow(at, "label:value");
                }
                checkLabel(bytes, at, colon, labels);
                if (!zero) {
                    row.addLabel(bytes, at, colon);
                }
                at = skipSpaces(bytes, end, to);
            }
        }
    }

    /** Objects of JSON. */
    static final class Json extends RowParser {

        private static final Pattern PLACE = Pattern.compile("column (\\d+)( path (\\S+))?");

        private final String textField;
        private final @Nullable String labelField;

        Json(String textField, @Nullable String labelField) {
            this.textField = textField;
            this.labelField = labelField;
        }

        @Override
        void parse(byte[] bytes, int from, int to, ParsedRow row) {
            String line = new String(bytes, from, to - from, StandardCharsets.UTF_8);
            boolean text = false;
            boolean label = labelField == null;
            try (JsonReader reader = new JsonReader(new StringReader(line))) {
                reader.setStrictness(Strictness.STRICT);
                reader.beginObject();
                while (reader.hasNext()) {
                    String name = reader.nextName();
                    if (name.equals(textField)) {
                        byte[] own = reader.nextString().getBytes(StandardCharsets.UTF_8);
                        row.setText(own, 0, own.length);
                        text = true;
                    } else if (name.equals(labelField)) {
                        readLabels(reader, line, from, row);
                        label = true;
                    } else {
                        reader.skipValue();
                    }
                }
                reader.endObject();
                reader.peek(); // fails if there is anything but spaces
            } catch (IOException | IllegalStateException | NumberFormatException e) {
                Matcher place = PLACE.matcher(String.valueOf(e.getMessage()));
                boolean known = place.find();
                String path = known && place.group(3) != null ? place.group(3) : "$";
                throw new BadRow(
                        from + (known ? bytesBefore(line, place) : 0),
                        "a JSON object, with a text or number at " + path);
            }
            if (!text || !label) {
                throw new BadRow(from, "a field \"" + (text ? labelField : textField) + "\"");
            }
        }

        /** Returns how many bytes of a line are before a place of a reader. */
        private static int bytesBefore(String line, Matcher place) {
            int chars = Math.min(Integer.parseInt(place.group(1)) - 1, line.length());
            return line.substring(0, chars).getBytes(StandardCharsets.UTF_8).length;
        }

        private static void readLabels(JsonReader reader, String line, int from, ParsedRow row)
                throws IOException {
            if (reader.peek() == JsonToken.BEGIN_ARRAY) {
                reader.beginArray();
                while (reader.hasNext()) {
                    readLabel(reader, line, from, row);
                }
                reader.endArray();
            } else if (reader.peek() == JsonToken.NULL) {
                reader.nextNull();
            } else {
                readLabel(reader, line, from, row);
            }
        }

        private static void readLabel(JsonReader reader, String line, int from, ParsedRow row)
                throws IOException {
            byte[] own = reader.nextString().getBytes(StandardCharsets.UTF_8);
            if (own.length == 0) {
                Matcher place = PLACE.matcher(reader.toString()); // behind its quotes
                throw new BadRow(
                        from + (place.find() ? bytesBefore(line, place) - 2 : 0),
                        "a label that is not empty at " + reader.getPreviousPath());
            }
            row.addLabel(own, 0, own.length);
        }
    }
}

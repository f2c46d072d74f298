package io.djltp.classes;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** What a row says. Its arrays are used again for the next. */
final class ParsedRow {

    byte[] text = {}; // in UTF-8
    int textFrom;
    int textTo;
    int[] ids = new int[64]; // of the features, from 0
    float[] values = new float[64];
    int count; // of the features
    int[] classes = new int[8]; // ascending
    int classCount;
    int labelCount; // as the row has them
    int unknownLabels;
    int unknownFeatures;

    private final ClassNames names;
    private final long[] filter; // pairs that do not count, ascending
    private final int featureLimit; // of sparse features, or 0
    private byte[] labels = new byte[64]; // in UTF-8, one after another
    private int[] labelEnds = new int[8];

    ParsedRow(ClassNames names, long[] filter, int featureLimit) {
        this.names = names;
        this.filter = filter;
        this.featureLimit = featureLimit;
    }

    void clear() {
        textTo = textFrom;
        count = 0;
        labelCount = 0;
    }

    void setText(byte[] bytes, int from, int to) {
        text = bytes;
        textFrom = from;
        textTo = to;
    }

    String getText() {
        return new String(text, textFrom, textTo - textFrom, StandardCharsets.UTF_8);
    }

    void addFeature(int id, float value) {
        if (count == ids.length) {
            ids = Arrays.copyOf(ids, 2 * count);
            values = Arrays.copyOf(values, 2 * count);
        }
        ids[count] = id;
        values[count++] = value;
    }

    /** Makes place for values without ids, and returns it. */
    float[] newValues(int size) {
        if (values.length < size) {
            values = new float[size];
        }
        count = size;
        return values;
    }

    void addLabel(byte[] bytes, int from, int to) {
        int begin = labelCount == 0 ? 0 : labelEnds[labelCount - 1];
        int end = begin + to - from;
        if (end > labels.length) {
            labels = Arrays.copyOf(labels, 2 * end);
        }
        if (labelCount == labelEnds.length) {
            labelEnds = Arrays.copyOf(labelEnds, 2 * labelCount);
        }
        System.arraycopy(bytes, from, labels, begin, to - from);
        labelEnds[labelCount++] = end;
    }

    /**
     * Looks up the classes of the labels, and leaves out features beyond the limit.
     *
     * @param number the number of the row
     * @param add whether names that are new become classes
     */
    void resolve(long number, boolean add) {
        if (classes.length < labelCount) {
            classes = new int[labelEnds.length];
        }
        int found = 0;
        int from = 0;
        for (int i = 0; i < labelCount; i++) {
            int to = labelEnds[i];
            int each = add ? names.add(labels, from, to) : names.find(labels, from, to);
            if (each >= 0) {
                classes[found++] = each;
            }
            from = to;
        }
        unknownLabels = labelCount - found;
        Arrays.sort(classes, 0, found);
        classCount = 0;
        for (int i = 0; i < found; i++) {
            int each = classes[i];
            boolean again = classCount > 0 && classes[classCount - 1] == each;
            if (!again && Arrays.binarySearch(filter, pair(number, each)) < 0) {
                classes[classCount++] = each;
            }
        }
        int kept = 0;
        for (int i = 0; featureLimit > 0 && i < count; i++) {
            if (ids[i] < featureLimit) {
                ids[kept] = ids[i];
                values[kept++] = values[i];
            }
        }
        unknownFeatures = featureLimit > 0 ? count - kept : 0;
        count -= unknownFeatures;
    }

    /** Returns a row and a class as one number. */
    static long pair(long row, int number) {
        return row << 31 | number;
    }
}

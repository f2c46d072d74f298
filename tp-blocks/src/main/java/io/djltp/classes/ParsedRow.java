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
    int unknownLabels;

    private byte[] labels = new byte[64]; // in UTF-8, one after another
    private int[] labelEnds = new int[8];
    int labelCount;

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
     * Looks up the classes of the labels.
     *
     * @param names the names
     * @param add whether names that are new become classes
     */
    void findClasses(ClassNames names, boolean add) {
        if (classes.length < labelCount) {
            classes = new int[labelEnds.length];
        }
        int found = 0;
        int from = 0;
        for (int i = 0; i < labelCount; i++) {
            int to = labelEnds[i];
            int number = add ? names.add(labels, from, to) : names.find(labels, from, to);
            if (number >= 0) {
                classes[found++] = number;
            }
            from = to;
        }
        unknownLabels = labelCount - found;
        Arrays.sort(classes, 0, found);
        classCount = 0;
        for (int i = 0; i < found; i++) {
            if (i == 0 || classes[i] != classes[i - 1]) {
                classes[classCount++] = classes[i];
            }
        }
    }
}

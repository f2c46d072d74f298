package io.djltp.classes;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.AbstractList;
import java.util.Arrays;
import java.util.RandomAccess;

/**
 * The names of classes by their numbers, and the numbers by the names. A list that cannot be
 * changed; {@link #indexOf} takes constant time. Three million names of 10 bytes take 80 MB.
 */
public final class ClassNames extends AbstractList<String> implements RandomAccess {

    private static final int LIMIT = 1 << 30; // classes, and slots

    private byte[] bytes = new byte[1024]; // of all names in UTF-8, one after another
    private int[] ends = new int[64];
    private int[] slots = new int[256]; // class + 1; open addressing, at most half full
    private int size;

    ClassNames() {}

    /**
     * Creates names from a list.
     *
     * @param names the names; the place in the list is the number of the class
     * @return the names
     * @throws IllegalArgumentException if a name occurs twice
     */
    public static ClassNames of(Iterable<String> names) {
        ClassNames all = new ClassNames();
        for (String name : names) {
            all.addNew(name, "the list");
        }
        return all;
    }

    /**
     * Reads names that {@link #save} wrote.
     *
     * @param file a text file in UTF-8, one name a line
     * @return the names
     * @throws IOException if the file cannot be read
     * @throws IllegalArgumentException if a name occurs twice
     */
    public static ClassNames load(Path file) throws IOException {
        ClassNames all = new ClassNames();
        try (BufferedReader reader = Files.newBufferedReader(file)) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                String name = line.indexOf('\\') < 0 ? line : unescape(line);
                all.addNew(name, file);
            }
        }
        return all;
    }

    /**
     * Writes the names to a text file in UTF-8, one a line. A backslash, a line feed and a carriage
     * return are written as {@code \\}, {@code \n} and {@code \r}.
     *
     * @param file the file
     * @throws IOException if it cannot be written
     */
    public void save(Path file) throws IOException {
        try (BufferedWriter writer = Files.newBufferedWriter(file)) {
            for (String name : this) {
                writer.write(name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r"));
                writer.write('\n');
            }
        }
    }

    private static String unescape(String line) {
        StringBuilder name = new StringBuilder(line.length());
        for (int i = 0; i < line.length(); i++) {
            char next = line.charAt(i);
            if (next == '\\' && ++i < line.length()) {
                next = line.charAt(i);
                next = next == 'n' ? '\n' : next == 'r' ? '\r' : next;
            }
            name.append(next);
        }
        return name.toString();
    }

    /** {@inheritDoc} */
    @Override
    public String get(int number) {
        if (number < 0 || number >= size) {
            throw new IndexOutOfBoundsException("Class " + number + " of " + size);
        }
        int from = start(number);
        return new String(bytes, from, ends[number] - from, StandardCharsets.UTF_8);
    }

    /** {@inheritDoc} */
    @Override
    public int size() {
        return size;
    }

    /**
     * Returns the number of a class.
     *
     * @param name the name, a string
     * @return the number, or -1 if there is no such class
     */
    @Override
    public int indexOf(@Nullable Object name) {
        if (!(name instanceof String text)) {
            return -1;
        }
        byte[] own = text.getBytes(StandardCharsets.UTF_8);
        return find(own, 0, own.length);
    }

    /** {@inheritDoc} */
    @Override
    public boolean contains(@Nullable Object name) {
        return indexOf(name) >= 0;
    }

    /** Returns the number of a name in UTF-8, or -1. */
    int find(byte[] text, int from, int to) {
        return slots[slot(text, from, to)] - 1;
    }

    /** Returns the number of a name in UTF-8, which gets the next number if it is new. */
    int add(byte[] text, int from, int to) {
        int slot = slot(text, from, to);
        if (slots[slot] != 0) {
            return slots[slot] - 1;
        }
        int begin = size == 0 ? 0 : ends[size - 1];
        int end = begin + to - from;
        Errors.check(
                end >= 0 && size < LIMIT / 2,
                "There are more than %s classes, or their names have more than 2 GiB: %s so far",
                LIMIT / 2,
                size);
        if (end > bytes.length) {
            bytes = Arrays.copyOf(bytes, (int) Math.min(Integer.MAX_VALUE - 8L, 2L * end));
        }
        if (size == ends.length) {
            ends = Arrays.copyOf(ends, 2 * size);
        }
        System.arraycopy(text, from, bytes, begin, to - from);
        ends[size++] = end;
        slots[slot] = size;
        if (2 * size > slots.length) {
            slots = new int[2 * slots.length];
            for (int i = 0; i < size; i++) {
                slots[slot(bytes, start(i), ends[i])] = i + 1;
            }
        }
        return size - 1;
    }

    private void addNew(String name, Object source) {
        byte[] own = name.getBytes(StandardCharsets.UTF_8);
        int number = size;
        Errors.check(
                add(own, 0, own.length) == number,
                "Class %s of %s has the name of an earlier one: %s",
                number,
                source,
                name);
    }

    private int start(int number) {
        return number == 0 ? 0 : ends[number - 1];
    }

    /** Returns the slot of a name: its own, or the free one that it would get. */
    private int slot(byte[] text, int from, int to) {
        int hash = 0;
        for (int i = from; i < to; i++) {
            hash = 31 * hash + text[i];
        }
        hash *= 0x9e3779b9;
        int mask = slots.length - 1;
        int slot = (hash ^ hash >>> 15) & mask;
        while (slots[slot] != 0) {
            int number = slots[slot] - 1;
            if (Arrays.equals(bytes, start(number), ends[number], text, from, to)) {
                return slot;
            }
            slot = slot + 1 & mask;
        }
        return slot;
    }

    /**
     * Returns the names in the order of their numbers if all are whole numbers below a billion,
     * such as 0 and 17, else in the order that they have.
     *
     * @param moved the numbers of the classes here, which become those there
     */
    ClassNames inOrder(int[] moved) {
        long[] keys = new long[size];
        for (int i = 0; i < size; i++) {
            long value = wholeNumber(start(i), ends[i]);
            if (value < 0) {
                return this;
            }
            keys[i] = value << Integer.SIZE | i;
        }
        Arrays.sort(keys);
        ClassNames sorted = new ClassNames();
        for (long key : keys) {
            int number = (int) key;
            moved[number] = sorted.add(bytes, start(number), ends[number]);
        }
        return sorted;
    }

    private long wholeNumber(int from, int to) {
        int length = to - from;
        boolean canonical = length > 0 && length <= 9 && (bytes[from] != '0' || length == 1);
        long value = canonical ? 0 : -1;
        for (int i = from; i < to && value >= 0; i++) {
            int digit = bytes[i] - '0';
            value = digit < 0 || digit > 9 ? -1 : 10 * value + digit;
        }
        return value;
    }
}

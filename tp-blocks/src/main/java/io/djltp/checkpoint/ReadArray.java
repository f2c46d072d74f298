package io.djltp.checkpoint;

/** How far the writing thread has read an array, whose rows it reads in their order. */
final class ReadArray {

    private final String parameter;
    private final long rows;
    private final long bytes;
    private volatile long read; // bytes

    /**
     * Creates an array of which nothing was read.
     *
     * @param parameter the name of the parameter whose rows these are, or {@code null}
     * @param rows the number of rows
     * @param bytes the bytes of all rows
     */
    ReadArray(String parameter, long rows, long bytes) {
        this.parameter = parameter;
        this.rows = Math.max(1, rows);
        this.bytes = bytes;
    }

    String parameter() {
        return parameter;
    }

    /** Notes how many bytes were read so far. */
    void setRead(long soFar) {
        read = soFar;
    }

    /** Returns whether all rows before a row were read. */
    boolean isReadUntil(long end) {
        return read >= (end >= rows ? bytes : end * (bytes / rows));
    }
}

package io.djltp.checkpoint.store;

/**
 * Bytes of a file of a checkpoint that are not as they were written.
 *
 * @param file the name of the file
 * @param begin the first byte of the block
 * @param end the byte after its last
 * @param what what is wrong
 */
public record Damage(String file, long begin, long end, String what) {

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return file + ", bytes " + begin + " to " + end + ": " + what;
    }
}

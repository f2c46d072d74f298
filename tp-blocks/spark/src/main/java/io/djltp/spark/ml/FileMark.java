package io.djltp.spark.ml;

import org.apache.hadoop.fs.Path;

import java.util.zip.CRC32C;

/**
 * What tells a file of a saved model from one that was cut or changed since.
 *
 * @param bytes its length
 * @param crc32c its checksum
 */
record FileMark(long bytes, String crc32c) {

    static FileMark of(byte[] content) {
        CRC32C sum = new CRC32C();
        sum.update(content);
        return new FileMark(content.length, Long.toHexString(sum.getValue()));
    }

    /**
     * Checks what was read.
     *
     * @throws IllegalStateException if it is not what was written
     */
    void check(Path file, byte[] read) {
        FileMark own = of(read);
        if (!own.equals(this)) {
            throw new IllegalStateException(
                    ("The file %s is not the one that was saved: it has %d bytes (CRC-32C %s), and"
                                    + " %d (%s) were written. Copy the model's folder again, or"
                                    + " save the model again")
                            .formatted(file, own.bytes, own.crc32c, bytes, crc32c));
        }
    }
}

package io.djltp.spark.ml;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.zip.CRC32C;

/**
 * What tells a file of a saved model from one that was cut or changed since.
 *
 * @param bytes its length
 * @param crc32c its checksum
 */
record FileMark(long bytes, String crc32c) {

    private static final String REMEDY = "Copy the model's folder again, or save the model again";

    static FileMark of(byte[] content) {
        CRC32C sum = new CRC32C();
        sum.update(content);
        return new FileMark(content.length, Long.toHexString(sum.getValue()));
    }

    /**
     * Reads a file and checks that it is the one that was written.
     *
     * @throws IllegalStateException if it is missing, was cut or changed
     * @throws IOException if it cannot be read for another reason
     */
    byte[] read(Path file, Configuration conf) throws IOException {
        byte[] content = readAll(file, conf);
        FileMark own = of(content);
        if (!own.equals(this)) {
            throw new IllegalStateException(
                    ("The file %s is not the one that was saved: it has %d bytes (CRC-32C %s), and"
                                    + " %d (%s) were written. "
                                    + REMEDY)
                            .formatted(file, own.bytes, own.crc32c, bytes, crc32c));
        }
        return content;
    }

    private byte[] readAll(Path file, Configuration conf) throws IOException {
        FileSystem system = file.getFileSystem(conf);
        if (system instanceof ChecksumFileSystem) { // its .crc files would be told in its words
            system = ((ChecksumFileSystem) system).getRawFileSystem();
        }
        try {
            byte[] content = new byte[Math.toIntExact(system.getFileStatus(file).getLen())];
            try (FSDataInputStream in = system.open(file)) {
                in.readFully(content);
            }
            return content;
        } catch (FileNotFoundException e) {
            throw new IllegalStateException(
                    "The file %s is missing, to which %d bytes were written. %s"
                            .formatted(file, bytes, REMEDY),
                    e);
        }
    }
}

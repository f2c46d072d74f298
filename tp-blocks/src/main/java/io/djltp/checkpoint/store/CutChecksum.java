package io.djltp.checkpoint.store;

import io.djltp.cut.ShardRange;

import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.TreeSet;
import java.util.zip.CRC32C;

/**
 * A checksum of which ranges of which tensors a part has. It is in the part, beside the tensors
 * themselves: an index that lets two parts of one shape trade places is not theirs.
 */
final class CutChecksum {

    /** Its name in the metadata of a part; one that an older version has written has none. */
    static final String KEY = "ranges";

    private CutChecksum() {}

    /**
     * Returns the checksum of a part.
     *
     * @param tensors all tensors of the checkpoint
     * @param part the part
     * @return eight hexadecimal digits
     */
    static String of(Collection<CutTensor> tensors, int part) {
        TreeSet<String> lines = new TreeSet<>(); // in an order that no process chooses
        for (CutTensor tensor : tensors) {
            StringBuilder text = new StringBuilder(tensor.name()).append(' ').append(tensor.axis());
            if (!tensor.isWhole()) {
                for (ShardRange range : tensor.cut().getRanges(part)) {
                    text.append(' ').append(range.start()).append(' ').append(range.end());
                }
            }
            lines.add(text.append('\n').toString());
        }
        CRC32C checksum = new CRC32C();
        lines.forEach(line -> checksum.update(line.getBytes(StandardCharsets.UTF_8)));
        return "%08x".formatted(checksum.getValue());
    }
}

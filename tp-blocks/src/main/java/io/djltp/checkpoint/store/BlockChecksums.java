package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.zip.CRC32C;

/**
 * The checksums of a file: the CRC-32C (Castagnoli, as of iSCSI, RFC 3720) of each block of it. The
 * last block may be shorter.
 */
final class BlockChecksums {

    /** The bytes of a block: what is read to check one byte. */
    static final int BLOCK = 1 << 18;

    private static final HexFormat HEX = HexFormat.of();
    private static final int DIGITS = 8;

    private final long size;
    private final int[] sums;

    private BlockChecksums(long size, int[] sums) {
        this.size = size;
        this.sums = sums;
    }

    /** Returns the bytes of the file. */
    long size() {
        return size;
    }

    /** Returns the number of blocks. */
    int blocks() {
        return sums.length;
    }

    /** Returns the first byte of a block. */
    long begin(long block) {
        return block * BLOCK;
    }

    /** Returns the byte after the last of a block. */
    long end(long block) {
        return Math.min(size, (block + 1) * BLOCK);
    }

    /** Returns whether bytes, read to their end, are a block as it was written. */
    boolean matches(long block, ByteBuffer bytes) {
        CRC32C sum = new CRC32C();
        sum.update(bytes);
        return (int) sum.getValue() == sums[(int) block];
    }

    /** Returns the checksums as hexadecimal digits, eight a block. */
    String encode() {
        StringBuilder text = new StringBuilder(sums.length * DIGITS);
        for (int sum : sums) {
            text.append(HEX.toHexDigits(sum));
        }
        return text.toString();
    }

    /**
     * Reads checksums.
     *
     * @param size the bytes of the file
     * @param text what {@link #encode} returned
     * @throws IllegalArgumentException if they are not those of so large a file
     */
    static BlockChecksums decode(long size, String text) {
        int[] sums = new int[text.length() / DIGITS];
        if (size < 0 || text.length() % DIGITS != 0 || sums.length != (size + BLOCK - 1) / BLOCK) {
            throw new IllegalArgumentException(
                    text.length() + " digits are not the checksums of " + size + " bytes");
        }
        for (int i = 0; i < sums.length; i++) {
            sums[i] = HexFormat.fromHexDigits(text, i * DIGITS, (i + 1) * DIGITS);
        }
        return new BlockChecksums(size, sums);
    }

    /** Writes to a channel, and adds up checksums while a block is in the processor's cache. */
    static final class Channel implements WritableByteChannel {

        private final WritableByteChannel out;
        private final CRC32C current = new CRC32C();
        private int[] sums = new int[16];
        private long size;

        Channel(WritableByteChannel out) {
            this.out = out;
        }

        /** {@inheritDoc} Writes a block at most. */
        @Override
        public int write(ByteBuffer bytes) throws IOException {
            int count = (int) Math.min(bytes.remaining(), BLOCK - size % BLOCK);
            ByteBuffer piece = bytes.slice(bytes.position(), count);
            current.update(piece.duplicate());
            while (piece.hasRemaining()) {
                out.write(piece);
            }
            bytes.position(bytes.position() + count);
            size += count;
            if (count > 0 && size % BLOCK == 0) {
                endBlock((int) (size / BLOCK) - 1);
            }
            return count;
        }

        private void endBlock(int block) {
            if (block == sums.length) {
                sums = Arrays.copyOf(sums, 2 * block);
            }
            sums[block] = (int) current.getValue();
            current.reset();
        }

        /** Returns the checksums of all bytes that were written. */
        BlockChecksums checksums() {
            int blocks = (int) ((size + BLOCK - 1) / BLOCK);
            if (size % BLOCK != 0) {
                endBlock(blocks - 1);
            }
            return new BlockChecksums(size, Arrays.copyOf(sums, blocks));
        }

        @Override
        public boolean isOpen() {
            return out.isOpen();
        }

        @Override
        public void close() throws IOException {
            out.close();
        }
    }
}

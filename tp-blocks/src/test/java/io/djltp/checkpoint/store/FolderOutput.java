package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/** What the bytes of a checkpoint go through on their way to the disk, for tests elsewhere. */
public final class FolderOutput {

    private FolderOutput() {}

    /** What is done before bytes are written. */
    @FunctionalInterface
    public interface Before {

        /**
         * Waits or throws.
         *
         * @throws IOException if nothing can be written
         */
        void write() throws IOException;
    }

    /**
     * Sets what is done before each write.
     *
     * @param folder the folder
     * @param before what is done
     */
    public static void set(CheckpointFolder folder, Before before) {
        folder.setOutput(
                out ->
                        new WritableByteChannel() {
                            @Override
                            public int write(ByteBuffer bytes) throws IOException {
                                before.write();
                                return out.write(bytes);
                            }

                            @Override
                            public boolean isOpen() {
                                return out.isOpen();
                            }

                            @Override
                            public void close() throws IOException {
                                out.close();
                            }
                        });
    }
}

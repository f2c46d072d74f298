package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.Shape;

import io.djltp.safetensors.SafetensorsFile;
import io.djltp.safetensors.StoredTensor;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** The open files of a checkpoint, and where in them each tensor lies. */
final class PartFiles implements Closeable {

    private final List<CheckedFile> files = new ArrayList<>();
    private final List<Map<String, Long>> places = new ArrayList<>(); // by part and name
    private final AtomicLong bytesRead = new AtomicLong();

    private PartFiles() {}

    /**
     * Opens the files, and checks that each is there, as long as it was, and has what the index
     * says.
     *
     * @throws CheckpointException if one is missing or damaged, or has something else
     */
    static PartFiles open(Path folder, CheckpointIndex index) throws IOException {
        checkNoneMissing(folder, index);
        PartFiles parts = new PartFiles();
        try {
            for (IndexedPart each : index.files()) {
                CheckedFile file =
                        CheckedFile.open(
                                folder.resolve(each.file()), each.checksums(), parts.bytesRead);
                int part = parts.files.size();
                parts.files.add(file);
                parts.places.add(parts.readHeader(file, part, index));
            }
            return parts;
        } catch (IOException | RuntimeException e) {
            parts.close();
            throw e;
        }
    }

    private static void checkNoneMissing(Path folder, CheckpointIndex index)
            throws CheckpointException {
        List<String> missing =
                index.files().stream()
                        .map(IndexedPart::file)
                        .filter(file -> !Files.isRegularFile(folder.resolve(file)))
                        .toList();
        if (!missing.isEmpty()) {
            throw new CheckpointException(
                    String.format(
                            "%s is not whole: %s %s missing. Copy %s back, or use another"
                                    + " checkpoint",
                            folder,
                            String.join(", ", missing),
                            missing.size() == 1 ? "is" : "are",
                            missing.size() == 1 ? "it" : "them"));
        }
    }

    private Map<String, Long> readHeader(CheckedFile file, int part, CheckpointIndex index)
            throws IOException {
        checkBlocks(file, 0, 1); // the length of the header, and most often all of it
        try (SafetensorsFile tensors = SafetensorsFile.open(file.path())) {
            long end = tensors.getDataStart();
            checkBlocks(file, 1, (end + BlockChecksums.BLOCK - 1) / BlockChecksums.BLOCK);
            Map<String, Long> own = new HashMap<>();
            for (CutTensor tensor : index.tensors().values()) {
                if (tensor.isIn(part)) {
                    StoredTensor stored = tensors.getTensor(tensor.name());
                    checkShard(file, tensor, part, stored);
                    own.put(tensor.name(), end + stored.begin());
                }
            }
            checkRanges(file, part, index, tensors.getMetadata().get(CutChecksum.KEY));
            return own;
        }
    }

    private static void checkBlocks(CheckedFile file, long first, long end) throws IOException {
        ByteBuffer block = ByteBuffer.allocate(BlockChecksums.BLOCK);
        for (long i = first; i < Math.min(end, file.checksums().blocks()); i++) {
            file.read(i, block.clear());
        }
    }

    private static void checkRanges(
            CheckedFile file, int part, CheckpointIndex index, String written)
            throws CheckpointException {
        if (written != null && !written.equals(CutChecksum.of(index.tensors().values(), part))) {
            throw new CheckpointException(
                    file.path()
                            + " has other ranges of the tensors than the index says: the index has"
                            + " been changed, or is of another checkpoint. Use another checkpoint");
        }
    }

    private static void checkShard(
            CheckedFile file, CutTensor tensor, int part, StoredTensor stored)
            throws CheckpointException {
        Shape shape = tensor.getShardShape(part);
        if (!stored.shape().equals(shape) || !stored.type().equals(tensor.type().asSafetensors())) {
            throw new CheckpointException(
                    String.format(
                            "%s has tensor %s as %s %s, and the index as %s %s: its process"
                                    + " declared another one",
                            file.path(),
                            tensor.name(),
                            stored.type(),
                            stored.shape(),
                            tensor.type().asSafetensors(),
                            shape));
        }
    }

    /** Returns the file of a part. */
    CheckedFile file(int part) {
        return files.get(part);
    }

    /** Returns all files. */
    List<CheckedFile> files() {
        return files;
    }

    /** Returns the first byte of a tensor in the file of a part. */
    long place(int part, String name) {
        return places.get(part).get(name);
    }

    /** Returns how many bytes were read so far. */
    long bytesRead() {
        return bytesRead.get();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        IOException failed = null;
        for (CheckedFile file : files) {
            try {
                file.close();
            } catch (IOException e) {
                failed = e;
            }
        }
        if (failed != null) {
            throw failed;
        }
    }
}

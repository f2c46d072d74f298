package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.util.Preconditions;

import com.google.gson.GsonBuilder;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.exchange.NameMapping.Match;
import io.djltp.exchange.NameMapping.StackedRows;
import io.djltp.exchange.OutputTensor.Source;
import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.safetensors.SafetensorsWriter;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * Writes the weights of a block tree as Hugging Face does: {@code model.safetensors}, or from some
 * size on {@code model-00001-of-00002.safetensors} and so on with {@code
 * model.safetensors.index.json}.
 *
 * <pre>{@code
 * WeightExport.builder()
 *         .setMapping(NameMapping.llama(32, 8))
 *         .optDataType(DataType.BFLOAT16)
 *         .build()
 *         .write(model.getBlock(), folder); // of a model in training, too
 * }</pre>
 *
 * <p>Weights go to the file a chunk of rows at a time. Of a model that a {@link
 * io.djltp.training.ParallelTrainer} is training the chunks come from the ranks' shards, between
 * two steps; in a job of several processes all of them write, each to a folder of its own, and hold
 * one parameter whole at a time, as where a tensor is transposed. A parameter that blocks share is
 * written once, by the name of the first. Parameters may have more than 2 GiB. The margin of a
 * {@link io.djltp.nn.ClassificationHead} is in the metadata of the file that has its weight.
 */
public final class WeightExport {

    private final NameMapping mapping;
    private final @Nullable DataType dataType;
    private final long fileBytes;
    private final String name;
    private final boolean overwrite;
    private final boolean adapters;

    private WeightExport(Builder builder, NameMapping mapping) {
        this.mapping = mapping;
        dataType = builder.dataType;
        fileBytes = builder.fileBytes;
        name = builder.name;
        overwrite = builder.overwrite;
        adapters = builder.adapters;
    }

    /**
     * Writes the weights. Files of the same name that are there are left as they are, unless {@code
     * optOverwrite(true)} lets them be replaced when all new ones are complete.
     *
     * @param block the tree, initialized
     * @param folder the folder
     * @return the file, or of several the index
     * @throws java.nio.file.FileAlreadyExistsException if there are files of the name; nothing is
     *     written
     * @throws IOException if they cannot be written, or a weight is too large for float16
     * @throws IllegalArgumentException if the mapping has no name for a parameter, or one name for
     *     two
     * @throws IllegalStateException if a parameter has no values
     */
    public Path write(Block block, Path folder) throws IOException {
        return write(Source.of(block, adapters), folder);
    }

    /**
     * Writes the weights of a checkpoint, whatever the number of ranks that it was taken of: the
     * tensors that are parameters, without what optimizers keep of them.
     *
     * @param checkpoint the checkpoint
     * @param folder the folder
     * @return the file, or of several the index
     * @throws IOException if they cannot be written, or the checkpoint is damaged
     * @throws IllegalArgumentException if the mapping has no name for a parameter, or one name for
     *     two
     */
    public Path write(Checkpoint checkpoint, Path folder) throws IOException {
        return write(Source.of(checkpoint), folder);
    }

    private Path write(Map<String, Source> weights, Path folder) throws IOException {
        boolean none = !Files.exists(folder);
        if (!none && !Files.isDirectory(folder)) {
            throw new FileAlreadyExistsException(
                    folder.toString(),
                    null,
                    "it is a file, and the weights go to a folder. Name one, new or not");
        }
        List<OutputTensor> tensors = tensors(weights);
        Files.createDirectories(folder);
        if (!overwrite) {
            checkNone(older(folder));
        }
        boolean written = false;
        try (SideFolder side = SideFolder.in(folder)) {
            String last = write(shareOut(tensors), side);
            List<String> names = side.replace(last);
            for (Path file : older(folder)) { // what is of an older set
                if (!names.contains(file.getFileName().toString())) {
                    Files.delete(file);
                }
            }
            written = true;
            return folder.resolve(last);
        } catch (IOException e) {
            throw SideFolder.explained(folder, e);
        } finally {
            if (none && !written) {
                Files.delete(folder); // it is empty
            }
        }
    }

    /** Throws FileAlreadyExistsException if a file is there. */
    static void checkNone(List<Path> files) throws FileAlreadyExistsException {
        for (Path file : files) {
            if (Files.exists(file)) {
                throw new FileAlreadyExistsException(
                        file.toString(),
                        null,
                        "there are weights already, and nothing is written. Choose another folder"
                                + " or name, or let them be replaced (optOverwrite(true),"
                                + " --overwrite)");
            }
        }
    }

    /** Returns the files of the name that are there. */
    private List<Path> older(Path folder) throws IOException {
        Pattern own =
                Pattern.compile(
                        Pattern.quote(name)
                                + "(-\\d{5}-of-\\d{5})?\\.safetensors(\\.index\\.json)?");
        try (Stream<Path> files = Files.list(folder)) {
            return files.filter(file -> own.matcher(file.getFileName().toString()).matches())
                    .sorted()
                    .toList();
        }
    }

    private List<List<OutputTensor>> shareOut(List<OutputTensor> tensors) {
        List<List<OutputTensor>> files = new ArrayList<>();
        long bytes = 0;
        for (OutputTensor tensor : tensors) {
            if (files.isEmpty() || bytes + tensor.bytes() > fileBytes) {
                files.add(new ArrayList<>());
                bytes = 0;
            }
            files.get(files.size() - 1).add(tensor);
            bytes += tensor.bytes();
        }
        return files;
    }

    /** Writes files, and an index of several. Returns the one by which all are found. */
    private String write(List<List<OutputTensor>> files, SideFolder side) throws IOException {
        if (files.size() == 1) {
            write(files.get(0), side.resolve(name + SafetensorsFolder.SUFFIX));
            return name + SafetensorsFolder.SUFFIX;
        }
        Map<String, String> map = new LinkedHashMap<>();
        long bytes = 0;
        for (int i = 0; i < files.size(); i++) {
            String file = String.format(Locale.ROOT, "%s-%05d-of-%05d", name, i + 1, files.size());
            write(files.get(i), side.resolve(file + SafetensorsFolder.SUFFIX));
            for (OutputTensor each : files.get(i)) {
                map.put(each.name(), file + SafetensorsFolder.SUFFIX);
                bytes += each.bytes();
            }
        }
        Map<String, Object> index = new LinkedHashMap<>();
        index.put("metadata", Map.of("total_size", bytes));
        index.put("weight_map", map);
        String text = new GsonBuilder().setPrettyPrinting().create().toJson(index);
        Files.writeString(side.resolve(name + SafetensorsFolder.INDEX), text + "\n");
        return name + SafetensorsFolder.INDEX;
    }

    private static void write(List<OutputTensor> tensors, Path file) throws IOException {
        SafetensorsWriter.Builder builder =
                SafetensorsWriter.builder().optMetadata("format", "pt"); // as PyTorch names them
        for (OutputTensor each : tensors) {
            builder.addTensor(each.name(), each.type(), each.shape());
            for (OutputTensor.Piece piece : each.pieces()) {
                Margin margin = piece.source().margin();
                if (margin != null) {
                    String key = WeightFiles.MARGIN + each.name();
                    builder.optMetadata(key, WeightFiles.note(margin));
                }
            }
        }
        try (FileChannel channel =
                        FileChannel.open(
                                file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
                SafetensorsWriter writer = builder.build(channel)) {
            for (OutputTensor tensor : tensors) {
                tensor.write(writer::write);
            }
            writer.finish();
            channel.force(true);
        }
    }

    /** Returns the tensors that the parameters of a tree become. */
    private List<OutputTensor> tensors(Map<String, Source> tree) {
        Map<String, OutputTensor> tensors = new LinkedHashMap<>();
        Set<Source> done = Collections.newSetFromMap(new IdentityHashMap<>());
        List<String> problems = new ArrayList<>();
        for (Map.Entry<String, Source> entry : tree.entrySet()) {
            if (done.contains(entry.getValue())) {
                continue; // shared with a block before, or of a rule of several
            }
            List<Match<Source>> matches = mapping.matches(entry.getKey(), tree::get);
            if (matches.isEmpty()) {
                problems.add("parameter " + entry.getKey() + " has no name in the mapping");
                continue;
            }
            Match<Source> match = matches.get(0);
            done.addAll(match.parameters());
            try {
                for (OutputTensor tensor : tensors(match)) {
                    if (tensors.put(tensor.name(), tensor) != null) {
                        problems.add("two parameters would be the tensor " + tensor.name());
                    }
                }
            } catch (IllegalArgumentException e) {
                problems.add(
                        "%s %s cannot be written by the rule '%s': %s"
                                .formatted(
                                        match.paths(),
                                        entry.getValue().shape(),
                                        match.rule(),
                                        e.getMessage()));
            }
        }
        if (!problems.isEmpty()) {
            throw new IllegalArgumentException(
                    "The weights cannot be written:\n  " + String.join("\n  ", problems));
        }
        return List.copyOf(tensors.values());
    }

    private List<OutputTensor> tensors(Match<Source> match) {
        DataType type = dataType == null ? match.parameters().get(0).type() : dataType;
        boolean transposed = match.rule().transposed();
        StackedRows own = match.stacked();
        List<OutputTensor> tensors = new ArrayList<>();
        long at = 0;
        for (Shape shape : match.tensorShapes()) {
            long end = transposed ? own.total() : at + Match.rows(shape);
            List<OutputTensor.Piece> pieces = new ArrayList<>();
            for (StackedRows.Segment rows : own.segments(at, end)) {
                Source source = match.parameters().get(rows.part());
                pieces.add(new OutputTensor.Piece(source, rows.from(), rows.to()));
            }
            String name = match.tensors().get(tensors.size());
            tensors.add(new OutputTensor(name, type, shape, pieces, transposed));
            at = end;
        }
        return tensors;
    }

    /**
     * Creates a builder to build a {@code WeightExport}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link WeightExport}. */
    public static final class Builder {

        private @Nullable NameMapping mapping;
        private @Nullable DataType dataType;
        private long fileBytes = 5_000_000_000L;
        private String name = "model";
        private boolean overwrite;
        private boolean adapters;

        private Builder() {}

        /**
         * Sets which tensor is which parameter.
         *
         * @param mapping the mapping
         * @return this builder
         */
        public Builder setMapping(NameMapping mapping) {
            this.mapping = mapping;
            return this;
        }

        /**
         * Sets the data type of the tensors. Default: that of each parameter.
         *
         * @param dataType float32, float16, bfloat16 or float64
         * @return this builder
         */
        public Builder optDataType(DataType dataType) {
            Preconditions.checkArgument(
                    dataType != null && dataType.isFloating(),
                    "Weights are written as floating point numbers, not " + dataType);
            this.dataType = dataType;
            return this;
        }

        /**
         * Sets how many bytes of tensors a file has at most, but a file of one tensor. Default: 5
         * GB, as Hugging Face's.
         *
         * @param fileBytes the number of bytes
         * @return this builder
         */
        public Builder optFileBytes(long fileBytes) {
            Preconditions.checkArgument(
                    fileBytes > 0, "The bytes of a file must be 1 or more, not " + fileBytes);
            this.fileBytes = fileBytes;
            return this;
        }

        /**
         * Sets how the names of the files begin. Default: {@code model}.
         *
         * @param name the name, without a folder
         * @return this builder
         */
        public Builder optName(String name) {
            this.name = name;
            return this;
        }

        /**
         * Lets files of the same name be replaced. Default: they are not, and nothing is written.
         *
         * @param overwrite whether they are replaced
         * @return this builder
         */
        public Builder optOverwrite(boolean overwrite) {
            this.overwrite = overwrite;
            return this;
        }

        /**
         * Sets whether of a tree with adapters ({@link io.djltp.nn.LoraConfig}) only these are
         * written. Default: false, each weight is written as the sum with its adapter.
         *
         * @param adapters whether only adapters are written
         * @return this builder
         */
        public Builder optAdapters(boolean adapters) {
            this.adapters = adapters;
            return this;
        }

        /**
         * Builds the export.
         *
         * @return the export
         */
        public WeightExport build() {
            return new WeightExport(this, Errors.given(mapping, "A WeightExport needs setMapping"));
        }
    }
}

package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.util.Preconditions;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.exchange.NameMapping.Match;
import io.djltp.exchange.NameMapping.StackedRows;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

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

    private static final Pattern FILE_NAME = Pattern.compile("[^/\\\\:\\p{Cntrl}]+");

    private final NameMapping mapping;
    private final DataType dataType;
    private final long fileBytes;
    private final long vocabulary;
    private final String name;
    private final boolean overwrite;

    private WeightExport(Builder builder) {
        mapping = builder.mapping;
        dataType = builder.dataType;
        fileBytes = builder.fileBytes;
        vocabulary = builder.vocabulary;
        name = builder.name;
        overwrite = builder.overwrite;
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
        return write(RowSource.of(block), folder);
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
        return write(RowSource.of(checkpoint), folder);
    }

    private Path write(Map<String, RowSource> weights, Path folder) throws IOException {
        return new OutputFiles(folder, name, fileBytes, overwrite).write(tensors(weights));
    }

    /** Returns the tensors that the parameters of a tree become. */
    private List<OutputTensor> tensors(Map<String, RowSource> tree) {
        Map<String, OutputTensor> tensors = new LinkedHashMap<>();
        Set<RowSource> done = Collections.newSetFromMap(new IdentityHashMap<>());
        List<String> problems = new ArrayList<>();
        for (Map.Entry<String, RowSource> entry : tree.entrySet()) {
            if (done.contains(entry.getValue())) {
                continue; // shared with a block before, or of a rule of several
            }
            List<Match<RowSource>> matches = mapping.matches(entry.getKey(), tree);
            if (matches.isEmpty()) {
                problems.add("parameter " + entry.getKey() + " has no name in the mapping");
                continue;
            }
            done.addAll(matches.get(0).parameters());
            for (OutputTensor tensor : tensors(matches.get(0), problems)) {
                if (tensors.put(tensor.name(), tensor) != null) {
                    problems.add("two parameters would be the tensor " + tensor.name());
                }
            }
        }
        if (!problems.isEmpty()) {
            throw new IllegalArgumentException(
                    "The weights cannot be written:\n  " + String.join("\n  ", problems));
        }
        return List.copyOf(tensors.values());
    }

    private List<OutputTensor> tensors(Match<RowSource> match, List<String> problems) {
        Shape first = match.parameters().get(0).shape();
        DataType type = dataType == null ? match.parameters().get(0).type() : dataType;
        String described = match.paths() + " " + first;
        boolean transposed = match.rule().transposed();
        if (match.rule().isPlain()) {
            return List.of(
                    OutputTensor.of(match.tensors().get(0), type, match.parameters().get(0)));
        }
        if (first.dimension() == 0 || transposed && first.dimension() != 2) {
            String reason =
                    first.dimension() == 0 ? "it has no rows" : "what is transposed has two axes";
            problems.add(
                    described + " cannot be written by the rule '" + match.rule() + "': " + reason);
            return List.of();
        }
        if (transposed) {
            Shape turned = new Shape(first.get(1), first.get(0));
            return List.of(
                    new OutputTensor(
                            match.tensors().get(0), type, turned, all(match, first), true));
        }
        StackedRows own = match.parameterRows(RowSource::shape);
        long[] rows = match.tensorRows(own.total());
        if (rows == null) {
            problems.add(described + " cannot be shared out: " + match.tensors());
            return List.of();
        }
        if (match.rule().padded() && vocabulary > 0) {
            rows[0] = vocabulary;
        }
        List<OutputTensor> tensors = new ArrayList<>();
        long at = 0;
        for (int i = 0; i < rows.length; i++) {
            List<OutputTensor.Piece> pieces = pieces(match, own.segments(at, at + rows[i]));
            long[] shape = first.getShape().clone();
            shape[0] = rows[i];
            String name = match.tensors().get(i);
            tensors.add(new OutputTensor(name, type, new Shape(shape), pieces, false));
            at += rows[i];
        }
        return tensors;
    }

    private static List<OutputTensor.Piece> pieces(
            Match<RowSource> match, List<StackedRows.Segment> segments) {
        return segments.stream()
                .map(
                        each ->
                                new OutputTensor.Piece(
                                        match.parameters().get(each.part()),
                                        each.from(),
                                        each.to()))
                .toList();
    }

    private static List<OutputTensor.Piece> all(Match<RowSource> match, Shape shape) {
        return List.of(new OutputTensor.Piece(match.parameters().get(0), 0, shape.get(0)));
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

        private NameMapping mapping;
        private DataType dataType;
        private long fileBytes = 5_000_000_000L;
        private long vocabulary;
        private String name = "model";
        private boolean overwrite;

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
         * Sets how many rows tensors get that a rule of the mapping calls padded: fewer than the
         * parameter, whose last rows are left out, or more, which are 0. Default: those of the
         * parameter.
         *
         * @param rows the number of rows
         * @return this builder
         */
        public Builder optVocabulary(long rows) {
            vocabulary = rows;
            return this;
        }

        /**
         * Sets how the names of the files begin. Default: {@code model}.
         *
         * @param name the name, without a folder
         * @return this builder
         * @throws IllegalArgumentException if it is no name of a file
         */
        public Builder optName(String name) {
            Preconditions.checkArgument(
                    FILE_NAME.matcher(name).matches() && !name.startsWith("."),
                    "The name of the files, '"
                            + name
                            + "', has to be a name without a folder; the folder is that of"
                            + " write(...)");
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
         * Builds the export.
         *
         * @return the export
         */
        public WeightExport build() {
            Preconditions.checkArgument(mapping != null, "A WeightExport needs setMapping");
            return new WeightExport(this);
        }
    }
}

package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.util.Preconditions;

import io.djltp.checkpoint.store.Checkpoint;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
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
 * two steps; in a job of several processes the process of rank 0 writes, and holds one parameter
 * whole at a time, as where a tensor is transposed. A parameter that blocks share is written once,
 * by the name of the first. Parameters may have more than 2 GiB. The margin of a {@link
 * io.djltp.nn.ClassificationHead} is in the metadata of the file that has its weight.
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
        return write(ParameterRows.of(block), folder);
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
        return write(CheckpointRows.of(checkpoint), folder);
    }

    private Path write(Map<String, RowSource> weights, Path folder) throws IOException {
        List<OutputTensor> tensors = new ExportPlan(mapping, dataType, vocabulary).tensors(weights);
        return new OutputFiles(folder, name, fileBytes, overwrite).write(tensors);
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

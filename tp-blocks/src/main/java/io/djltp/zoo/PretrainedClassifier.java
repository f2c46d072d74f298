package io.djltp.zoo;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import ai.djl.util.Preconditions;

import io.djltp.internal.Errors;
import io.djltp.nn.ClassificationHead;

import org.jspecify.annotations.Nullable;

import java.util.List;

/**
 * A pretrained network with a new head of as many classes as wanted, which are cut over the ranks
 * of a {@link io.djltp.training.ParallelTrainer}.
 *
 * <pre>{@code
 * ZooModel<Image, Classifications> pretrained = criteria.loadModel();
 * Block network =
 *         PretrainedClassifier.builder()
 *                 .setBackbone(pretrained.getBlock())
 *                 .optDropLast(1)
 *                 .setClasses(1_000_000)
 *                 .build();
 * }</pre>
 *
 * <p>The backbone is any block with values, from a zoo or a file, TorchScript too. It is left as it
 * is, without dropout, if it is not to be trained along. Keep its model, and keep it open, as long
 * as you use the new one: DJL frees the weights of a model that nobody refers to any more.
 */
public final class PretrainedClassifier {

    private PretrainedClassifier() {}

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder of a network. */
    public static final class Builder {

        private @Nullable Block backbone;
        private static final String NO_VALUES =
                "A pretrained classifier needs a backbone with values: load its model and give"
                        + " its block to setBackbone(...)";

        private long classes;
        private int withoutLast;
        private boolean trained;

        private Builder() {}

        /**
         * Sets the pretrained network.
         *
         * @param backbone the network, with values
         * @return this builder
         */
        public Builder setBackbone(Block backbone) {
            this.backbone = backbone;
            return this;
        }

        /**
         * Sets the number of classes of a head with a bias, whose loss is computed in chunks. In
         * MIXED mode the backbone is data parallel and the head tensor parallel.
         *
         * @param classes the number of classes
         * @return this builder
         */
        public Builder setClasses(long classes) {
            this.classes = classes;
            return this;
        }

        /**
         * Leaves out the last blocks of the pretrained network, such as its own head. Default: 0.
         *
         * @param blocks how many of the blocks of a {@code SequentialBlock}
         * @return this builder
         */
        public Builder optDropLast(int blocks) {
            withoutLast = blocks;
            return this;
        }

        /**
         * Sets whether the pretrained network is trained along. Default: no.
         *
         * @param trained whether its parameters are trained; a script's cannot be
         * @return this builder
         */
        public Builder optTrained(boolean trained) {
            this.trained = trained;
            return this;
        }

        /**
         * Builds the network: features of the backbone [batch, features], and the head.
         *
         * @return the network, to be set as the block of a new model
         * @throws IllegalArgumentException if the backbone is missing, has no values or not so many
         *     blocks, or there are no classes
         */
        public Block build() {
            // not DJL's isInitialized, which is false for a script that has not been used
            Block given = Errors.given(backbone, NO_VALUES);
            Preconditions.checkArgument(
                    given.getParameters().values().stream().allMatch(Parameter::isInitialized),
                    NO_VALUES);
            Preconditions.checkArgument(
                    classes > 0,
                    "A pretrained classifier needs 1 class or more, not "
                            + classes
                            + ": call setClasses(...)");
            Block features = features(given);
            SequentialBlock network = new SequentialBlock();
            if (trained) {
                features.freezeParameters(false);
                network.add(features).add(Blocks.batchFlattenBlock());
            } else {
                network.add(new FrozenBackbone(features));
            }
            // where a data-parallel backbone ends, where that is asked for
            return network.add(
                    ClassificationHead.builder()
                            .setUnits(classes)
                            .optBatchShardedInput(true)
                            .build());
        }

        private Block features(Block whole) {
            if (withoutLast == 0) {
                return whole;
            }
            List<Block> blocks = whole.getChildren().values();
            Preconditions.checkArgument(
                    whole instanceof SequentialBlock
                            && withoutLast > 0
                            && withoutLast < blocks.size(),
                    "optDropLast(%d) is for a SequentialBlock of more blocks, not for %s of %d"
                            .formatted(
                                    withoutLast, whole.getClass().getSimpleName(), blocks.size()));
            return new SequentialBlock().addAll(blocks.subList(0, blocks.size() - withoutLast));
        }
    }

    /**
     * A pretrained network that is used as it is, also while what is behind it is trained: without
     * dropout, with the statistics that its batch normalizations have learned, and without
     * gradients.
     *
     * <ul>
     *   <li>input: that of the network
     *   <li>output: its first output as features [batch, features]
     * </ul>
     */
    private static final class FrozenBackbone extends AbstractBlock {

        private static final byte VERSION = 1;

        private final Block network;

        @SuppressWarnings("this-escape") // as all blocks of DJL
        FrozenBackbone(Block network) {
            super(VERSION);
            this.network = addChildBlock("network", network);
            network.freezeParameters(true);
        }

        /** {@inheritDoc} */
        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> args) {
            NDArray features = network.forward(store, inputs, false).head();
            // a script computes in libtorch's inference mode, whose arrays no gradient can pass
            NDArray copy = features.duplicate();
            return new NDList(copy.reshape(flat(features.getShape())));
        }

        private static Shape flat(Shape shape) {
            return new Shape(shape.get(0), shape.slice(1).size());
        }

        /** {@inheritDoc} */
        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return new Shape[] {flat(network.getOutputShapes(inputShapes)[0])};
        }

        /** {@inheritDoc} */
        @Override
        protected void initializeChildBlocks(
                NDManager manager, DataType dataType, Shape... inputShapes) {
            network.initialize(manager, dataType, inputShapes);
        }
    }
}

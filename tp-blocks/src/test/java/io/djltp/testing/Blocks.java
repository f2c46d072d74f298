package io.djltp.testing;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.ParallelBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;

import java.util.function.UnaryOperator;

/** Blocks that networks of tests are made of, plain or cut. */
public final class Blocks {

    private Blocks() {}

    /**
     * Returns blocks in a row.
     *
     * @param blocks the blocks
     * @return the block
     */
    public static SequentialBlock sequence(Block... blocks) {
        return new SequentialBlock().addAll(blocks);
    }

    /**
     * Returns branches whose outputs are concatenated over the last axis.
     *
     * @param blocks the branches
     * @return the block
     */
    public static Block parallel(Block... blocks) {
        return new ParallelBlock(
                        list ->
                                new NDList(
                                        NDArrays.concat(
                                                new NDList(
                                                        list.stream()
                                                                .map(NDList::head)
                                                                .toArray(NDArray[]::new)),
                                                -1)))
                .addAll(blocks);
    }

    /**
     * Returns branches whose outputs are added.
     *
     * @param blocks the branches
     * @return the block
     */
    public static Block sum(Block... blocks) {
        return new ParallelBlock(
                        list ->
                                new NDList(
                                        list.stream()
                                                .map(NDList::head)
                                                .reduce(NDArray::add)
                                                .orElseThrow()))
                .addAll(blocks);
    }

    /**
     * Returns DJL's linear layer.
     *
     * @param units the output features
     * @return the block
     */
    public static Linear linear(long units) {
        return Linear.builder().setUnits(units).build();
    }

    /**
     * Returns a column-parallel layer at which the body ends, in both forms: under an ordinary
     * trainer it is whole.
     *
     * @param units the output features
     * @return the block
     */
    public static ColumnParallelLinear head(long units) {
        return ColumnParallelLinear.builder().setUnits(units).optBatchShardedInput(true).build();
    }

    /**
     * Returns the same with its loss and update in one.
     *
     * @param units the output features
     * @return the block
     */
    public static Block fused(long units) {
        return ClassificationHead.builder().setUnits(units).optBatchShardedInput(true).build();
    }

    /**
     * Returns a column-parallel layer at which the body ends.
     *
     * @param cut whether it is cut
     * @param units the output features
     * @return the block
     */
    public static Block first(boolean cut, long units) {
        return cut ? head(units) : linear(units);
    }

    /**
     * Returns a column-parallel layer.
     *
     * @param cut whether it is cut
     * @param units the output features
     * @return the block
     */
    public static Block column(boolean cut, long units) {
        return cut ? ColumnParallelLinear.builder().setUnits(units).build() : linear(units);
    }

    /**
     * Returns a row-parallel layer.
     *
     * @param cut whether it is cut
     * @param units the output features
     * @return the block
     */
    public static Block row(boolean cut, long units) {
        return cut ? RowParallelLinear.builder().setUnits(units).build() : linear(units);
    }

    /**
     * Returns an activation.
     *
     * @return the block
     */
    public static Block tanh() {
        return new LambdaBlock(Activation::tanh);
    }

    /**
     * Returns an activation.
     *
     * @return the block
     */
    public static Block gelu() {
        return new LambdaBlock(Activation::gelu);
    }

    /**
     * Returns a block that flattens all but the batch.
     *
     * @return the block
     */
    public static Block flatten() {
        return LambdaBlock.singleton(x -> x.reshape(x.getShape().get(0), -1));
    }

    /**
     * Returns a block that reshapes.
     *
     * @param shape the shape
     * @return the block
     */
    public static Block reshape(long... shape) {
        return LambdaBlock.singleton(x -> x.reshape(shape));
    }

    /**
     * Returns a block with all parameters frozen.
     *
     * @param block the block
     * @return the block
     */
    public static Block frozen(Block block) {
        block.freezeParameters(true);
        return block;
    }

    /**
     * Returns a block with its weights frozen.
     *
     * @param block the block
     * @return the block
     */
    public static Block frozenWeight(Block block) {
        block.freezeParameters(true, p -> p.getName().equals("weight"));
        return block;
    }

    /**
     * Returns an operation on a single array.
     *
     * @param operation the operation
     * @return the block
     */
    public static Block map(UnaryOperator<NDArray> operation) {
        return LambdaBlock.singleton(operation::apply);
    }

    /**
     * Returns branches whose outputs are the outputs, one after the other.
     *
     * @param blocks the branches
     * @return the block
     */
    public static Block outputs(Block... blocks) {
        return new ParallelBlock(
                        list -> {
                            NDList all = new NDList();
                            list.forEach(all::addAll);
                            return all;
                        })
                .addAll(blocks);
    }

    /**
     * Returns a linear layer of DJL's.
     *
     * @param units the number of outputs
     * @param bias whether it has a bias
     * @return the layer
     */
    public static Linear linear(long units, boolean bias) {
        return Linear.builder().setUnits(units).optBias(bias).build();
    }

    /**
     * Returns a column-parallel layer of an input that is whole.
     *
     * @param units the number of outputs
     * @return the layer
     */
    public static ColumnParallelLinear column(long units) {
        return ColumnParallelLinear.builder().setUnits(units).build();
    }

    /**
     * Returns a column-parallel layer behind a data-parallel body, whose output is whole.
     *
     * @param units the number of outputs
     * @return the layer
     */
    public static ColumnParallelLinear gathered(long units) {
        return ColumnParallelLinear.builder()
                .setUnits(units)
                .optBatchShardedInput(true)
                .optGatherOutput(true)
                .build();
    }

    /**
     * Returns a row-parallel layer.
     *
     * @param units the number of outputs
     * @return the layer
     */
    public static RowParallelLinear row(long units) {
        return RowParallelLinear.builder().setUnits(units).build();
    }

    /**
     * Returns a row-parallel layer whose output has the rows of the rank.
     *
     * @param units the number of outputs
     * @return the layer
     */
    public static RowParallelLinear scattered(long units) {
        return RowParallelLinear.builder().setUnits(units).optBatchShardedOutput(true).build();
    }

    /** Returns the larger of an element and 0. */
    public static Block relu() {
        return new LambdaBlock(Activation::relu);
    }

    /** Returns a multi-head attention with so many heads. */
    public static ParallelMultiHeadAttention.Builder attention(long width, int heads) {
        return ParallelMultiHeadAttention.builder().setEmbeddingSize(width).setHeads(heads);
    }

    /** Returns an MLP with so many features within. */
    public static ParallelMlp.Builder mlp(long units, long hidden) {
        return ParallelMlp.builder().setUnits(units).setHiddenFeatures(hidden);
    }

    /** Returns an embedding of so many ids. */
    public static VocabParallelEmbedding.Builder table(long vocabulary, long width) {
        return VocabParallelEmbedding.builder()
                .setVocabularySize(vocabulary)
                .setEmbeddingSize(width);
    }

    /** Returns a weight of a block. */
    public static Parameter parameter(String name, Shape shape) {
        return Parameter.builder()
                .setName(name)
                .setType(Parameter.Type.WEIGHT)
                .optShape(shape)
                .build();
    }

    /** Returns a builder of a layer whose outputs are cut. */
    public static ColumnParallelLinear.Builder newColumn(long units) {
        return ColumnParallelLinear.builder().setUnits(units);
    }

    /** Returns a builder of a layer whose inputs are cut. */
    public static RowParallelLinear.Builder newRow(long units) {
        return RowParallelLinear.builder().setUnits(units);
    }

    /** Returns a builder of a classification head. */
    public static ClassificationHead.Builder newHead(long units) {
        return ClassificationHead.builder().setUnits(units);
    }

    /** Returns a model with a network. */
    public static Model model(Block network) {
        Model model = Model.newInstance("net");
        model.setBlock(network);
        return model;
    }
}

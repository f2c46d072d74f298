package io.djltp.zoo.minilm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import java.util.ArrayList;
import java.util.List;

/**
 * The network of all-MiniLM-L6-v2: BERT's encoder, the mean over the word pieces of a text, and
 * that divided by its length.
 *
 * <ul>
 *   <li>inputs: ids int64 [B, T], and the mask int64 [B, T], 0 behind the end of a text
 *   <li>output: [B, width], each row of length 1
 * </ul>
 *
 * <p>Collectives of a forward pass on several ranks: one all-reduce of the embeddings, two in each
 * layer, of the attention and of what follows it.
 */
public final class MiniLm extends AbstractBlock {

    private static final byte VERSION = 1;

    private final BertSizes sizes;
    private final BertEmbeddings embeddings;
    private final List<Block> layers = new ArrayList<>();

    /**
     * Creates a network, without values.
     *
     * @param sizes its sizes
     */
    @SuppressWarnings("this-escape") // as all blocks of DJL
    public MiniLm(BertSizes sizes) {
        super(VERSION);
        this.sizes = sizes;
        embeddings = addChildBlock("embeddings", new BertEmbeddings(sizes));
        for (int i = 0; i < sizes.layers(); i++) {
            layers.add(addChildBlock("layer" + i, sizes.layer()));
        }
    }

    /**
     * Returns the network, without values.
     *
     * @return the network of all-MiniLM-L6-v2
     */
    public static Block create() {
        return new MiniLm(BertSizes.MINI_LM);
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray mask = inputs.get(1);
        NDArray states =
                embeddings.forward(store, new NDList(inputs.get(0)), training).singletonOrThrow();
        for (Block layer : layers) {
            states = layer.forward(store, new NDList(states, mask), training).singletonOrThrow();
        }
        return new NDList(unit(mean(states, mask)));
    }

    /** Returns the mean over the word pieces, not over what fills up. */
    private static NDArray mean(NDArray states, NDArray mask) {
        NDArray counted = mask.toType(states.getDataType(), false); // [B, T]
        NDArray sum = states.mul(counted.expandDims(2)).sum(new int[] {1}); // [B, width]
        return sum.div(counted.sum(new int[] {1}, true));
    }

    private static NDArray unit(NDArray rows) {
        return rows.div(rows.square().sum(new int[] {1}, true).sqrt());
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {new Shape(inputShapes[0].get(0), sizes.width())};
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        embeddings.initialize(manager, dataType, inputShapes[0]);
        Shape states = inputShapes[0].add(sizes.width());
        for (Block layer : layers) {
            layer.initialize(manager, dataType, states, inputShapes[1]);
        }
    }

    /**
     * What BERT makes of the numbers of word pieces: the sum of a row for the word piece, one for
     * its position and one for the kind of its sentence, normalized.
     *
     * <ul>
     *   <li>input: ids int64 [B, T], T up to the number of positions
     *   <li>output: [B, T, width]
     * </ul>
     *
     * <p>The table of the word pieces is cut over the ranks: one all-reduce. The others are small,
     * and every rank has them.
     */
    static final class BertEmbeddings extends AbstractBlock {

        private static final byte VERSION = 1;

        private final BertSizes sizes;
        private final Block words;
        private final Parameter positions;
        private final Parameter kinds;
        private final LayerNorm norm;

        BertEmbeddings(BertSizes sizes) {
            super(VERSION);
            this.sizes = sizes;
            words = addChildBlock("words", sizes.words());
            positions = table("positions", sizes.positions());
            kinds = table("kinds", sizes.kinds());
            norm = addChildBlock("norm", sizes.norm());
        }

        private Parameter table(String name, long rows) {
            return addParameter(
                    Parameter.builder()
                            .setName(name)
                            .setType(Parameter.Type.WEIGHT)
                            .optShape(new Shape(rows, sizes.width()))
                            .build());
        }

        /** {@inheritDoc} */
        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray ids = inputs.singletonOrThrow();
            NDManager manager = ids.getManager();
            NDArray places = manager.arange(0, ids.getShape().get(1), 1, DataType.INT64);
            NDArray sum =
                    words.forward(store, new NDList(ids), training)
                            .singletonOrThrow()
                            .add(rows(store, kinds, ids.zerosLike(), training)) // all one sentence
                            .add(
                                    rows(
                                            store, positions, places,
                                            training)); // [T, width] for each text
            return norm.forward(store, new NDList(sum), training);
        }

        private static NDArray rows(
                ParameterStore store, Parameter table, NDArray numbers, boolean training) {
            NDArray values = store.getValue(table, numbers.getDevice(), training);
            return numbers.getNDArrayInternal()
                    .embedding(numbers, values, SparseFormat.DENSE)
                    .singletonOrThrow();
        }

        /** {@inheritDoc} */
        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return new Shape[] {inputShapes[0].add(sizes.width())};
        }

        /** {@inheritDoc} */
        @Override
        protected void initializeChildBlocks(
                NDManager manager, DataType dataType, Shape... inputShapes) {
            words.initialize(manager, dataType, inputShapes);
            norm.initialize(manager, dataType, getOutputShapes(inputShapes));
        }
    }
}

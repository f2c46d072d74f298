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

/**
 * What BERT makes of the numbers of word pieces: the sum of a row for the word piece, one for its
 * position and one for the kind of its sentence, normalized.
 *
 * <ul>
 *   <li>input: ids int64 [B, T], T up to the number of positions
 *   <li>output: [B, T, width]
 * </ul>
 *
 * <p>The table of the word pieces is cut over the ranks: one all-reduce. The others are small, and
 * every rank has them.
 */
final class BertEmbeddings extends AbstractBlock {

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
                        .add(rows(store, positions, places, training)); // [T, width] for each text
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

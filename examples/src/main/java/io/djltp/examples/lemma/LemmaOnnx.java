package io.djltp.examples.lemma;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.exchange.OnnxExport;
import io.djltp.exchange.OnnxGraph;
import io.djltp.zoo.lemma.CharNGrams;
import io.djltp.zoo.lemma.LemmaNetwork;

import java.io.IOException;
import java.nio.file.Path;

/**
 * A lemmatiser as ONNX file: {@code ngrams} in, int32 [batch, places], as {@link CharNGrams} makes
 * them; {@code logits} out, [batch, lemmas], in the order of the lexicon.
 */
public final class LemmaOnnx {

    private LemmaOnnx() {}

    /**
     * Writes a lemmatiser.
     *
     * @param saved the lemmatiser
     * @param path the file
     * @param overwrite whether it is replaced if it is there
     * @throws IOException if it cannot be written, or is there
     */
    public static void write(SavedModel saved, Path path, boolean overwrite) throws IOException {
        OnnxExport.builder()
                .setInput("ngrams", DataType.INT32, new Shape(-1, saved.getNGrams().limit()))
                .optOutput("logits")
                .optBlock(LemmaNetwork.NORMALIZE, LemmaOnnx::normalize)
                .optOverwrite(overwrite)
                .build()
                .write(saved.getModel(), path);
    }

    /** y = 16 x / sqrt(sum of x² + epsilon), row by row. */
    private static String normalize(OnnxGraph graph, String x) {
        String axis = graph.integers(DataType.INT64, 1);
        String squares = graph.add("ReduceSum", graph.add("Mul", x, x), axis);
        String sum = graph.add("Add", squares, graph.number(LemmaNetwork.EPSILON));
        String unit = graph.add("Div", x, graph.add("Sqrt", sum));
        return graph.add("Mul", unit, graph.number(LemmaNetwork.FEATURE_LENGTH));
    }
}

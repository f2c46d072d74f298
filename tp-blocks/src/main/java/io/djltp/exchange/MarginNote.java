package io.djltp.exchange;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.head.Margin;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.nn.ClassificationHead;
import io.djltp.parameters.BlockWalk;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * The margin that a weight was trained with, in the metadata of its file: {@code
 * margin.head.weight} is {@code 64.0 1.0 0.5 0.0}, the scale, m1, m2 and m3. Without it the logits
 * of the same weight are others.
 */
final class MarginNote {

    private static final String KEY = "margin.";

    private MarginNote() {}

    /** Returns the margins of the heads of a tree, by their weights. */
    static Map<Parameter, Margin> of(Block block) {
        Map<Parameter, Margin> margins = new IdentityHashMap<>();
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    if (each instanceof ClassificationHead head) {
                        margins.put(head.getDirectParameters().get("weight"), head.getMargin());
                    }
                });
        return margins;
    }

    /** Notes the margin of a tensor, if it has one. */
    static void write(OutputTensor tensor, SafetensorsWriter.Builder file) {
        for (OutputTensor.Piece piece : tensor.pieces()) {
            Margin margin = piece.source().margin();
            if (margin != null) {
                file.optMetadata(KEY + tensor.name(), text(margin));
            }
        }
    }

    private static String text(Margin margin) {
        return margin.scale() + " " + margin.m1() + " " + margin.m2() + " " + margin.m3();
    }

    /**
     * Returns what is wrong with the margin of a parameter's head. A tensor without a note may be
     * of another library, and says nothing.
     *
     * @param files the files
     * @param tensor the name of the parameter's tensor
     * @param path the path of the parameter
     * @param built the margin of its head, or {@code null}
     * @return the problem, or {@code null} if the margin is that of the tensor
     */
    static String problem(WeightFiles files, String tensor, String path, Margin built) {
        String noted = files.fileOf(tensor).getMetadata().get(KEY + tensor);
        if (noted == null) {
            return null;
        }
        try {
            Margin trained = parse(noted);
            return trained.equals(built)
                    ? null
                    : String.format(
                            "tensor %s is the weight of a head that was trained with %s, and"
                                    + " parameter %s is built with %s: give its ClassificationHead"
                                    + " that margin (optMargin)",
                            tensor, trained, path, built == null ? "no margin" : built);
        } catch (IllegalArgumentException | IndexOutOfBoundsException e) {
            return "'" + noted + "' is no margin of tensor " + tensor + ": " + e.getMessage();
        }
    }

    private static Margin parse(String noted) {
        String[] numbers = noted.split(" ");
        return new Margin(
                Float.parseFloat(numbers[0]),
                Float.parseFloat(numbers[1]),
                Float.parseFloat(numbers[2]),
                Float.parseFloat(numbers[3]));
    }
}

package io.djltp.examples.spark;

import ai.djl.nn.Block;

import io.djltp.spark.ml.BodyFactory;
import io.djltp.zoo.LemmaNetwork;

import java.util.Map;

/** The lemmatiser below its head. */
public final class LemmaBody implements BodyFactory {

    /** Creates a factory. */
    public LemmaBody() {}

    /** {@inheritDoc} */
    @Override
    public Block newBody(Map<String, String> arguments) {
        return LemmaNetwork.body(
                Integer.parseInt(arguments.get("rows")), Integer.parseInt(arguments.get("dim")));
    }
}

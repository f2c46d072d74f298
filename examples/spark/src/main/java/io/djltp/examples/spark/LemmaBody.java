package io.djltp.examples.spark;

import ai.djl.nn.Block;

import io.djltp.classes.ClassModel;
import io.djltp.spark.ml.BodyFactory;

import java.util.Map;

/** The lemmatiser below its head. */
public final class LemmaBody implements BodyFactory {

    /** Creates a factory. */
    public LemmaBody() {}

    /** {@inheritDoc} */
    @Override
    public Block newBody(Map<String, String> arguments) {
        return ClassModel.newTextBody(
                Integer.parseInt(arguments.get("rows")), Integer.parseInt(arguments.get("dim")));
    }
}

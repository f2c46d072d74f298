package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.MalformedModelException;
import ai.djl.repository.zoo.BaseModelLoader;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslatorFactory;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/**
 * Loads a model of a zoo from files that its jar has, over as many ranks as an argument or an
 * option says, see {@link TensorParallelDegree}.
 */
public final class ParallelModelLoader extends BaseModelLoader {

    /** The group of the models of this library. */
    public static final String GROUP_ID = "io.djltp";

    /**
     * Creates a loader.
     *
     * @param application what the model is for
     * @param artifactId the name of the model
     * @param files its files, which are put into DJL's cache when it is loaded first
     * @param translatorFactory what makes its translators
     */
    public ParallelModelLoader(
            Application application,
            String artifactId,
            ModelFiles files,
            Class<? extends TranslatorFactory> translatorFactory) {
        super(
                new ZooRepository(
                                application,
                                artifactId,
                                files,
                                Map.of("translatorFactory", translatorFactory.getName()))
                        .getMrl());
    }

    /** {@inheritDoc} DJL hands no options to block factories: the degree becomes an argument. */
    @Override
    public <I, O> ZooModel<I, O> loadModel(Criteria<I, O> criteria)
            throws IOException, ModelNotFoundException, MalformedModelException {
        Map<String, String> options = criteria.getOptions();
        String degree = options == null ? null : options.get(TensorParallelDegree.NAME);
        if (degree == null) {
            return super.loadModel(criteria);
        }
        Map<String, Object> arguments = new HashMap<>();
        if (criteria.getArguments() != null) {
            arguments.putAll(criteria.getArguments());
        }
        arguments.putIfAbsent(TensorParallelDegree.NAME, degree);
        return super.loadModel(criteria.toBuilder().optArguments(arguments).build());
    }
}

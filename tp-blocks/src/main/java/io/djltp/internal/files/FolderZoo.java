package io.djltp.internal.files;

import ai.djl.Application;
import ai.djl.MalformedModelException;
import ai.djl.repository.MRL;
import ai.djl.repository.Repository;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelLoader;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.Progress;

import java.io.IOException;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/** A zoo of DJL whose models are folders, which are loaded as DJL loads those of a user. */
public abstract class FolderZoo extends ModelZoo {

    private final String groupId;

    /**
     * Creates a zoo.
     *
     * @param groupId its name
     * @param application what the models are for
     * @param artifactIds the names of the models
     */
    @SuppressWarnings("this-escape") // only the loaders of the zoo get it
    protected FolderZoo(String groupId, Application application, String... artifactIds) {
        this.groupId = groupId;
        for (String each : artifactIds) {
            addModel(new Loader(each, application));
        }
    }

    /**
     * Finds the folder of a model.
     *
     * @param criteria what was asked for
     * @param arguments the options and the arguments, to be completed
     * @return the folder
     * @throws IOException if it cannot be made
     * @throws ModelNotFoundException if another zoo may have the model
     */
    protected abstract Path find(Criteria<?, ?> criteria, Map<String, Object> arguments)
            throws IOException, ModelNotFoundException;

    /** {@inheritDoc} */
    @Override
    public String getGroupId() {
        return groupId;
    }

    /** {@inheritDoc} */
    @Override
    public Set<String> getSupportedEngines() {
        return Set.of("PyTorch");
    }

    private final class Loader implements ModelLoader {

        private final String artifactId;
        private final Application application;

        Loader(String artifactId, Application application) {
            this.artifactId = artifactId;
            this.application = application;
        }

        @Override
        public String getGroupId() {
            return groupId;
        }

        @Override
        public String getArtifactId() {
            return artifactId;
        }

        @Override
        public Application getApplication() {
            return application;
        }

        @Override
        public MRL getMrl() {
            Repository none = Repository.newInstance("DJL Tensor Parallel", Path.of(groupId));
            return none.model(application, groupId, artifactId);
        }

        /** Makes arguments of the options, which DJL hands to no block factory. */
        @Override
        public <I, O> ZooModel<I, O> loadModel(Criteria<I, O> criteria)
                throws IOException, ModelNotFoundException, MalformedModelException {
            Map<String, Object> arguments = new HashMap<>();
            if (criteria.getOptions() != null) {
                arguments.putAll(criteria.getOptions());
            }
            if (criteria.getArguments() != null) {
                arguments.putAll(criteria.getArguments());
            }
            return criteria.toBuilder()
                    .optGroupId(null)
                    .optArtifactId(null)
                    .optApplication(Application.UNDEFINED)
                    .optModelPath(find(criteria, arguments))
                    .optArguments(arguments)
                    .optOption("hasParameter", "false")
                    .build()
                    .loadModel();
        }

        @Override
        public <I, O> boolean isDownloaded(Criteria<I, O> criteria) {
            return true;
        }

        @Override
        public <I, O> void downloadModel(Criteria<I, O> criteria, Progress progress) {}
    }
}

package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.MalformedModelException;
import ai.djl.repository.AbstractRepository;
import ai.djl.repository.Artifact;
import ai.djl.repository.MRL;
import ai.djl.repository.Metadata;
import ai.djl.repository.zoo.BaseModelLoader;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.repository.zoo.ZooProvider;
import ai.djl.util.Progress;

import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Tells DJL of the model of this jar: {@code optGroupId("io.djltp")}, {@code
 * optArtifactId("lemma-en")}, a small lemmatiser of English words.
 */
public final class TensorParallelZooProvider implements ZooProvider {

    private static final String GROUP_ID = "io.djltp";
    private static final String ARTIFACT_ID = "lemma-en";

    /** Creates a provider. */
    public TensorParallelZooProvider() {}

    /** {@inheritDoc} */
    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    private static final class Zoo extends ModelZoo {

        Zoo() {
            addModel(new Loader(new ZooFiles()));
        }

        /** {@inheritDoc} */
        @Override
        public String getGroupId() {
            return GROUP_ID;
        }

        /** {@inheritDoc} */
        @Override
        public Set<String> getSupportedEngines() {
            return Set.of("PyTorch");
        }
    }

    /** DJL hands no options to block factories: the degree becomes an argument. */
    private static final class Loader extends BaseModelLoader {

        Loader(ZooFiles files) {
            super(files.resource);
        }

        /** {@inheritDoc} */
        @Override
        public <I, O> ZooModel<I, O> loadModel(Criteria<I, O> criteria)
                throws IOException, ModelNotFoundException, MalformedModelException {
            Map<String, Object> arguments = new HashMap<>();
            if (criteria.getOptions() != null
                    && criteria.getOptions().containsKey(TensorParallelDegree.NAME)) {
                arguments.put(
                        TensorParallelDegree.NAME,
                        criteria.getOptions().get(TensorParallelDegree.NAME));
            }
            if (criteria.getArguments() != null) {
                arguments.putAll(criteria.getArguments());
            }
            return super.loadModel(criteria.toBuilder().optArguments(arguments).build());
        }
    }

    /**
     * The files of the lemmatiser, from the class path. Slices can be read from files only, so that
     * they are put into DJL's cache once: to the side, then renamed, in a folder of their version.
     */
    private static final class ZooFiles extends AbstractRepository {

        private static final Application APPLICATION = Application.NLP.TEXT_CLASSIFICATION;

        private final MRL resource;
        private final Metadata metadata = new Metadata.MatchAllMetadata();

        ZooFiles() {
            super("DJL Tensor Parallel", URI.create("djltp:///" + ARTIFACT_ID));
            resource = model(APPLICATION, GROUP_ID, ARTIFACT_ID);
            Artifact artifact = new Artifact();
            artifact.setName(ARTIFACT_ID);
            String factory = LemmaNetwork.TranslatorFactory.class.getName();
            artifact.getArguments().put("translatorFactory", factory);
            artifact.setFiles(Map.of());
            metadata.setGroupId(GROUP_ID);
            metadata.setArtifactId(ARTIFACT_ID);
            metadata.setApplication(APPLICATION);
            metadata.setArtifacts(List.of(artifact));
            metadata.setRepositoryUri(resource.toURI());
        }

        /** {@inheritDoc} */
        @Override
        public boolean isRemote() {
            return true; // its files are not where they are read
        }

        /** {@inheritDoc} */
        @Override
        public Metadata locate(MRL mrl) {
            return metadata;
        }

        /** {@inheritDoc} */
        @Override
        public Artifact resolve(MRL mrl, Map<String, String> filter) {
            return metadata.getArtifacts().get(0);
        }

        /** {@inheritDoc} */
        @Override
        public List<MRL> getResources() {
            return List.of(resource);
        }

        /** {@inheritDoc} */
        @Override
        public Path getResourceDirectory(Artifact artifact) throws IOException {
            return getCacheDirectory()
                    .resolve(resource.toURI().getPath())
                    .resolve(LemmaNetwork.getVersion());
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(Artifact artifact, Progress progress) throws IOException {
            Path folder = getResourceDirectory(artifact);
            if (Files.isDirectory(folder)) {
                return;
            }
            Path parent = Files.createDirectories(folder.getParent());
            try (SideFolder side = SideFolder.in(parent)) {
                LemmaNetwork.writeFolder(
                        Files.createDirectory(side.resolve(folder.getFileName().toString())));
                side.replace();
            } catch (IOException e) {
                if (!Files.isDirectory(folder)) { // else another process was faster
                    throw e;
                }
            }
        }
    }
}

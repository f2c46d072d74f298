package io.djltp.zoo.registry;

import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooProvider;

import io.djltp.zoo.ParallelModelLoader;
import io.djltp.zoo.lemma.LemmaModel;
import io.djltp.zoo.minilm.MiniLmModel;

import java.util.Set;

/**
 * Tells DJL of the models of this library, {@code optGroupId("io.djltp")}.
 *
 * <ul>
 *   <li>{@code lemma-en}: a small lemmatiser of English words; in this jar
 *   <li>{@code all-MiniLM-L6-v2}: sentence embeddings; its 90 MB of weights are an artifact of
 *       their own
 * </ul>
 */
public final class TensorParallelZooProvider implements ZooProvider {

    /** Creates a provider. */
    public TensorParallelZooProvider() {}

    /** {@inheritDoc} */
    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    private static final class Zoo extends ModelZoo {

        Zoo() {
            addModel(LemmaModel.newLoader());
            addModel(MiniLmModel.newLoader());
        }

        /** {@inheritDoc} */
        @Override
        public String getGroupId() {
            return ParallelModelLoader.GROUP_ID;
        }

        /** {@inheritDoc} */
        @Override
        public Set<String> getSupportedEngines() {
            return Set.of("PyTorch");
        }
    }
}

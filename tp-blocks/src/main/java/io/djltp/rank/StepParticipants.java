package io.djltp.rank;

import ai.djl.nn.Parameter;

import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;

/** The participants of a rank's steps, in the order in which blocks have asked for them. */
public final class StepParticipants implements Iterable<StepParticipant>, AutoCloseable {

    private final Map<Key, StepParticipant> participants = new LinkedHashMap<>();

    StepParticipants() {}

    private record Key(Class<?> type, Object key) {}

    /**
     * Returns a participant.
     *
     * @param <T> its class
     * @param key what it is kept by, mostly a parameter of the block that asks
     * @param type its class: a block may have participants of several for one key
     * @param factory makes it at the first call
     * @return the participant
     * @throws IllegalArgumentException if another participant has one of its parameters
     */
    public <T extends StepParticipant> T get(
            Object key, Class<T> type, Supplier<? extends T> factory) {
        Key place = new Key(type, key);
        StepParticipant participant = participants.get(place);
        if (participant == null) {
            participant = factory.get();
            checkOwner(participant);
            participants.put(place, participant);
        }
        return type.cast(participant);
    }

    private void checkOwner(StepParticipant added) {
        for (StepParticipant other : this) {
            for (Parameter parameter : added.getParameters()) {
                if (other.getParameters().contains(parameter)) {
                    throw new IllegalArgumentException(
                            "Parameter "
                                    + parameter.getName()
                                    + " "
                                    + parameter.getShape()
                                    + " is shared by two blocks that update it themselves ("
                                    + other.getClass().getSimpleName()
                                    + " and "
                                    + added.getClass().getSimpleName()
                                    + "): give each a parameter of its own");
                }
            }
        }
    }

    /**
     * Returns the parameters that participants update themselves.
     *
     * @return the parameters
     */
    public Set<Parameter> getParameters() {
        Set<Parameter> parameters = new HashSet<>();
        forEach(each -> parameters.addAll(each.getParameters()));
        return parameters;
    }

    /**
     * Returns the number of participants.
     *
     * @return how many there are
     */
    public int size() {
        return participants.size();
    }

    /** {@inheritDoc} */
    @Override
    public Iterator<StepParticipant> iterator() {
        return Collections.unmodifiableCollection(participants.values()).iterator();
    }

    /** Closes the participants. */
    @Override
    public void close() {
        forEach(StepParticipant::close);
    }
}

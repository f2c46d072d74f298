/** The events that a recording of Java Flight Recorder gets of a training. */
package io.djltp.internal.events;

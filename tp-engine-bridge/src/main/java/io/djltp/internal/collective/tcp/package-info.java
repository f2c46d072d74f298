/** Contains the {@code tcp} backend: ranks of many processes that are connected by sockets. */
@NullMarked
package io.djltp.internal.collective.tcp;

import org.jspecify.annotations.NullMarked;

/** Contains the {@code tcp} backend: ranks of many processes that are connected by sockets. */
package io.djltp.internal.collective.tcp;

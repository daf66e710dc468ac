def bucketed_class():
    from cs336_systems.buckets import DDPBucketed

    return DDPBucketed
